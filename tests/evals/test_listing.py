"""Files of problems: what is read, and how a damaged one is refused."""

import gzip
import hashlib
import json

import pytest

from tr.evals.listing import field, own, read


def load(path):
    return read(path, lambda row: field(row, "name", str), str)


def file(tmp_path, *lines):
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_a_file_and_its_hash(tmp_path):
    path = file(tmp_path, '{"name": "a"}', "", '{"name": "b", "more": 1}', "")
    found = load(path)
    assert found.problems == ["a", "b"]
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_gzipped_file(tmp_path):
    path = tmp_path / "set.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"name": "a"}\n'))
    assert load(path).problems == ["a"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="set.jsonl.gz: damaged gzip data"):
        load(path)


@pytest.mark.parametrize(
    "line, said",
    [
        ('{"name": "c"', r"set.jsonl:2: not JSON: .* at column"),
        ("[1]", "set.jsonl:2: expected a JSON object, got list"),
        ('{"nome": "c"}', "set.jsonl:2: expected a field 'name', got 'nome'"),
        ('{"name": 3}', "set.jsonl:2: field 'name': expected a str, got int 3"),
        ('{"name": "a"}', "set.jsonl:2: 'a' stands in line 1 already"),
        ("[" * 100000, "set.jsonl:2: not JSON"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, line, said):
    with pytest.raises(ValueError, match=said):
        load(file(tmp_path, '{"name": "a"}', line))


def test_other_files_that_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone.jsonl is no file"):
        load(tmp_path / "gone.jsonl")
    with pytest.raises(ValueError, match="got an empty file"):
        load(file(tmp_path, "", ""))
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"name": "a"}\n{"name": "\xe9"}\n')
    with pytest.raises(ValueError, match="latin.jsonl:2: not UTF-8"):
        load(path)


def test_our_own_problems_have_a_hash_of_their_content():
    one, other = own([1, 2], str), own([1, 3], str)
    assert one.problems == [1, 2] and one.sha256 != other.sha256
    assert one.sha256 == hashlib.sha256(json.dumps(["1", "2"]).encode()).hexdigest()
