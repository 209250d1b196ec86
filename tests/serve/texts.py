"""Answers that a script may give, and the tools they call."""

WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "where": {"type": "object"},
        },
        "required": ["city"],
    },
}
CHAT_TOOL = {"type": "function", "function": WEATHER}
FLAT_TOOL = {"type": "function", **WEATHER}
MESSAGES_TOOL = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": WEATHER["parameters"],
}
CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nSão Paulo\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
ARGUMENTS = {"city": "São Paulo", "days": 3}
TWO_CALLS = f"I look.\n\n{CALL}\n{CALL.replace('São Paulo', 'Oslo')}"
THOUGHT = "I add them: 3 + 4.\n</think>\n\nSeven 🙂."
USER = [{"role": "user", "content": "Hi"}]
