"""Prompts of our own with instructions that are checked, in IFEval's form."""

ROWS = (
    {
        "key": "own/0",
        "prompt": "Write three sentences about a lighthouse. Use no commas.",
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_sentences"],
        "kwargs": [{}, {"num_sentences": 3, "relation": "at least"}],
    },
    {
        "key": "own/1",
        "prompt": "Describe a market in fewer than 60 words. Use the words bread and fish.",
        "instruction_id_list": ["length_constraints:number_words", "keywords:existence"],
        "kwargs": [{"num_words": 60, "relation": "less than"}, {"keywords": ["bread", "fish"]}],
    },
    {
        "key": "own/2",
        "prompt": "List exactly four kinds of tree as bullet points that begin with *.",
        "instruction_id_list": ["detectable_format:number_bullet_lists"],
        "kwargs": [{"num_bullets": 4}],
    },
    {
        "key": "own/3",
        "prompt": "Is water wet? Put your whole answer between double quotation marks.",
        "instruction_id_list": ["startend:quotation"],
        "kwargs": [{}],
    },
    {
        "key": "own/4",
        "prompt": 'Give a recipe as a JSON object with the keys "name" and "minutes", no more.',
        "instruction_id_list": ["detectable_format:json_format"],
        "kwargs": [{}],
    },
    {
        "key": "own/5",
        "prompt": 'Say why bridges need care and end with the words "That is all." exactly.',
        "instruction_id_list": ["startend:end_checker"],
        "kwargs": [{"end_phrase": "That is all."}],
    },
    {
        "key": "own/6",
        "prompt": "Tell of a storm at sea without the words wave and wind, under a title in << >>.",
        "instruction_id_list": ["keywords:forbidden_words", "detectable_format:title"],
        "kwargs": [{"forbidden_words": ["wave", "wind"]}, {}],
    },
    {
        "key": "own/7",
        "prompt": "Name two cities. No word of your answer may appear more than twice.",
        "instruction_id_list": ["words:repeats"],
        "kwargs": [{"small_n": 2}],
    },
    {
        "key": "own/8",
        "prompt": "Answer with yes/no/maybe and nothing else: is seven a prime number?",
        "instruction_id_list": ["format:options", "format:no_whitespace"],
        "kwargs": [{"options": "yes/no/maybe"}, {}],
    },
    {
        "key": "own/9",
        "prompt": "Count in words from one to five, each word on a line of its own.",
        "instruction_id_list": ["format:newline", "count:numbers"],
        "kwargs": [{}, {"N": 0}],
    },
    {
        "key": "own/10",
        "prompt": "Write between 20 and 60 words about snow, with at least two conjunctions.",
        "instruction_id_list": ["count:word_count_range", "count:conjunctions"],
        "kwargs": [{"min_words": 20, "max_words": 60}, {"small_n": 2}],
    },
    {
        "key": "own/11",
        "prompt": "Repeat this request word for word, then answer it: Why do leaves fall?",
        "instruction_id_list": ["combination:repeat_prompt"],
        "kwargs": [{"prompt_to_repeat": "Why do leaves fall?"}],
    },
)
