"""Records to Markdown and plots: python -m tr.report RECORD... [--out FOLDER] | --readme"""

import argparse
import sys
from pathlib import Path

from tr.report.pages import update_readme, write_report
from tr.report.record import load


def found(paths: list[Path]) -> dict[str, Path]:
    """Every record file by its title; a folder stands for all the JSON files inside."""
    files: dict[str, Path] = {}
    for path in paths:
        inside = sorted(path.glob("**/*.json")) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path} holds no records (*.json)")
        files |= {str(file.with_suffix("")).lstrip("/"): file for file in inside}
    return files


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tr.report", description=__doc__)
    parser.add_argument("records", nargs="*", type=Path, help="record files or folders of them")
    parser.add_argument("--out", type=Path, default=Path("outputs/report"), help="where to write")
    parser.add_argument("--readme", action="store_true", help="regenerate the README's figures")
    given = parser.parse_args(args)
    if bool(given.records) == given.readme:
        parser.error("give records, or --readme")
    try:
        if given.readme:
            print("README.md changed" if update_readme() else "README.md is current")
        else:
            records = {title: load(path) for title, path in found(given.records).items()}
            print(write_report(records, given.out))
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
