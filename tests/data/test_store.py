"""What is written to the store comes back, and what is no store is refused with a sentence."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibranch.data import PairStore, PreparedData, StoreWriter
from multibranch.data import store as store_module
from multibranch.errors import UserError

FILES = ["train.source.bin", "train.source.len", "train.target.bin", "train.target.len"]

ids = st.integers(0, 2**32 - 1) | st.integers(0, 2**16)
sequences = st.lists(st.lists(ids, max_size=12), max_size=20)


def write(folder: Path, sources: list[list[int]], targets: list[list[int]]) -> PairStore:
    with StoreWriter(folder, "train") as writer:
        writer.add_many(sources, targets)
    return PairStore.open(folder, "train")


def content(store: PairStore) -> list[tuple[list[int], list[int]]]:
    return [(store.source(i).tolist(), store.target(i).tolist()) for i in range(len(store))]


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(st.tuples(st.lists(ids, max_size=9), st.lists(ids, max_size=9)), max_size=20))
def test_pairs_come_back_as_they_went_in(
    pairs: list[tuple[list[int], list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = write(folder, [a for a, _ in pairs], [b for _, b in pairs])
    assert content(store) == pairs
    assert store.source_lengths.tolist() == [len(a) for a, _ in pairs]
    assert store.source_lengths.dtype == np.int32
    assert content(PairStore.from_lists(*zip(*pairs) if pairs else ([], []))) == pairs


def test_adding_one_by_one_equals_adding_in_lots(tmp_path: Path) -> None:
    sources, targets = [[5, 2], [], [7, 8, 2]], [[2], [9, 2], list(range(1000))]
    lots = write(tmp_path / "lots", sources, targets)
    with StoreWriter(tmp_path / "single", "train") as writer:
        for source, target in zip(sources, targets):
            writer.add(source, target)
        assert len(writer) == 3
    for name in FILES:
        assert (tmp_path / "lots" / name).read_bytes() == (tmp_path / "single" / name).read_bytes()
    assert content(lots) == list(zip(sources, targets))


def test_ids_take_two_bytes_until_one_needs_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "FLUSH_IDS", 8)
    narrow = [[65535, 3, 2]] * 20
    with StoreWriter(tmp_path, "train") as writer:
        for source in narrow:
            writer.add(source, [4, 2])
        writer.add([65536, 2], [4, 2])
        writer.add([1, 2], [4, 2])
    store = PairStore.open(tmp_path, "train")
    assert store.source_ids.dtype == np.uint32
    assert store.target_ids.dtype == np.uint16
    assert [a for a, _ in content(store)] == [*narrow, [65536, 2], [1, 2]]
    assert (tmp_path / "train.target.bin").stat().st_size == 32 + 2 * 44


def test_a_long_sequence_and_a_large_store(tmp_path: Path) -> None:
    long = list(range(60_000)) * 20
    store = write(tmp_path, [long, [2]], [[2], long])
    assert np.array_equal(store.source(0), long)
    assert np.array_equal(store.target(1), long)
    assert isinstance(store.source_ids, np.memmap)


def test_loading_copies_small_sides_only(tmp_path: Path) -> None:
    store = write(tmp_path, [[5, 6, 2]], [[7, 2]])
    store.load(at_most=4)
    assert isinstance(store.source_ids, np.memmap)
    assert not isinstance(store.target_ids, np.memmap)
    assert content(store) == [([5, 6, 2], [7, 2])]


def test_an_exception_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "train")
    with pytest.raises(TypeError), writer:
        writer.add_many([[1, 2], [3, None]], [[3, 2], [2]])  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []


def test_before_closing_there_is_no_store(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "train")
    writer.add([1, 2], [3, 2])
    assert not any((tmp_path / name).exists() for name in FILES)
    writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_impossible_ids_and_unequal_sides_are_refused(tmp_path: Path) -> None:
    for wrong in (-1, 2**32):
        with pytest.raises(ValueError, match="between 0 and"), StoreWriter(tmp_path, "train") as w:
            w.add([wrong], [2])
    with pytest.raises(ValueError, match="2 sources but 1 target"):
        StoreWriter(tmp_path, "train").add_many([[1], [2]], [[1]])


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    writer = StoreWriter(tmp_path, "train")
    writer._sides[1]._files["len"].close()
    writer._sides[1]._files["len"] = Full()  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"disk is full \(.*train\.target\.len could not"), writer:
        writer.add([1, 2], [3, 2])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FILES)
def test_damage_names_the_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, [[5, 6, 2], [5, 2]], [[7, 2], [8, 9, 2]])
    path = tmp_path / name
    whole = path.read_bytes()
    damages = {
        "damaged": [
            whole[:-1],
            whole + b"\0",
            whole[:10],
            b"",
            b"x" + whole[1:],
            whole[:20] + b"\3" + whole[21:],
        ],
        "format 7": [whole[:16] + b"\7" + whole[17:]],
    }
    for complaint, contents in damages.items():
        for damaged in contents:
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=complaint) as caught:
                PairStore.open(tmp_path, "train")
            assert name in str(caught.value)
            assert "prepare the corpus again" in str(caught.value)
    path.unlink()
    with pytest.raises(UserError, match="cannot be read") as caught:
        PairStore.open(tmp_path, "train")
    assert name in str(caught.value)


def test_lengths_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [[5, 6, 2], [5, 2]], [[7, 2], [8, 9, 2]])
    path = tmp_path / "train.source.len"
    for lengths in ([3, 3], [6, -1]):
        path.write_bytes(path.read_bytes()[:32] + np.array(lengths, dtype="<i4").tobytes())
        with pytest.raises(UserError, match=r"do not add up to the 5 ids of train\.source\.bin"):
            PairStore.open(tmp_path, "train")


def test_sides_of_different_counts_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", [[5, 2]], [[7, 2]])
    write(tmp_path / "b", [[5, 2], [6, 2]], [[7, 2], [8, 2]])
    for kind in ("bin", "len"):
        name = f"train.source.{kind}"
        (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(UserError, match="2 sources but 1 target"):
        PairStore.open(tmp_path / "a", "train")


def test_a_prepared_folder_opens(tmp_path: Path) -> None:
    write(tmp_path, [[5, 2]], [[7, 2]])
    (tmp_path / "manifest.json").write_text(json.dumps({"recipe": "parallel"}))
    (tmp_path / "valid.source.txt").write_text("eins\n\nzwei\u2028drei\n", encoding="utf-8")
    data = PreparedData.open(tmp_path)
    assert data.manifest == {"recipe": "parallel"}
    assert data.splits == ["train"]
    assert content(data.split("train")) == [([5, 2], [7, 2])]
    assert data.split("train") is data.split("train")
    assert data.lines("valid", "source") == ["eins", "", "zwei\u2028drei"]
    with pytest.raises(UserError, match=r"no split 'test' \(it holds: train\)"):
        data.split("test")
    with pytest.raises(UserError, match=r"has no split 'test' \(it holds: train\)"):
        data.lines("test", "target")


@pytest.mark.parametrize("content", [None, "{", "[]", "\xff"])
def test_a_folder_without_a_manifest_is_not_prepared(tmp_path: Path, content: str | None) -> None:
    if content is None:
        complaint = "is not a prepared folder"
    else:
        (tmp_path / "manifest.json").write_bytes(content.encode("latin-1"))
        complaint = r"manifest\.json is damaged"
    with pytest.raises(UserError, match=complaint):
        PreparedData.open(tmp_path)
