"""Where a checkpoint is: a local folder, or a hub repository downloaded into its usual cache."""

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm

from tr.progress import silenced

PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt"]


def resolve(path: str | None, repo: str | None, revision: str | None = None) -> Path:
    """The folder of exactly one of `path` and `repo` (OWNER/NAME at a branch, tag or commit).

    A repository's weights, configs and tokenizer files are downloaded, with progress; what the
    cache holds already is not fetched again. Raises ValueError, FileNotFoundError or
    ConnectionError.
    """
    if (path is None) == (repo is None):
        given = "neither" if path is None else "both"
        raise ValueError(f"checkpoint: give one of path=FOLDER and repo=OWNER/NAME, got {given}")
    if path is not None:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise FileNotFoundError(f"checkpoint: {folder} is not a folder; check weights.path")
        return folder
    assert repo is not None
    return _download(repo, revision)


class Silent(tqdm):
    """The hub's own bar, not shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def _download(repo: str, revision: str | None) -> Path:
    shown = Silent if silenced() else None
    try:
        return Path(
            snapshot_download(repo, revision=revision, allow_patterns=PATTERNS, tqdm_class=shown)
        )
    except HFValidationError as error:
        raise ValueError(f"checkpoint: {repo!r} is no repository name; use OWNER/NAME") from error
    except GatedRepoError as error:
        raise ValueError(
            f"checkpoint: repository {repo} is gated; accept its terms, then `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"checkpoint: repository {repo} was not found; check the name, or `hf auth login` if "
            "it is private"
        ) from error
    except RevisionNotFoundError as error:
        raise ValueError(f"checkpoint: repository {repo} has no revision {revision!r}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ConnectionError(
            f"checkpoint: the hub was not reached and {repo} is not in the cache; go online and"
            f" `hf download {repo}`, or give a downloaded folder as weights.path"
        ) from error
    except HfHubHTTPError as error:
        raise ConnectionError(f"checkpoint: download of {repo} failed: {error}") from error
