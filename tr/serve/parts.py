"""What all protocols' messages have: fields of a kind, and content as a text or parts of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from tr.serve.errors import ApiError, invalid

NO_IMAGES = "this model reads text only; send no images, audio or files"
MEDIA = ("image", "image_url", "input_image", "input_audio", "audio", "video_url", "input_file")


def objects(value: Any, where: str) -> Sequence[Mapping[str, Any]]:
    """A list of objects, not empty."""
    if not isinstance(value, list) or not value:
        raise invalid(where, "expected a list of at least one object")
    for index, one in enumerate(value):
        if not isinstance(one, Mapping):
            raise invalid(f"{where}[{index}]", f"expected an object, got {type(one).__name__}")
    return value


def string(source: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = source.get(name, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", f"expected a string, got {type(value).__name__}")
    return value


def texts(content: Any, where: str, kinds: Mapping[str, str]) -> list[str]:
    """The pieces of a content; `kinds`: type of a part -> the field that holds its text."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise invalid(where, "expected a string or a list of parts")
    found = []
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if isinstance(part, str):
            found.append(part)
        elif not isinstance(part, Mapping):
            raise invalid(place, f"expected an object, got {type(part).__name__}")
        else:
            kind = part.get("type", "text")
            if not isinstance(kind, str) or kind not in kinds:
                raise unknown_part(kind, place)
            found.append(string(part, kinds[kind], place))
    return found


def unknown_part(kind: Any, where: str) -> ApiError:
    if isinstance(kind, str) and kind in MEDIA:
        return invalid(where, f"{kind}: {NO_IMAGES}")
    return invalid(f"{where}.type", f"unknown kind of content {kind!r:.40}")
