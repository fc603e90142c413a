"""Memory handed from cache to cache: never in two hands, and never much more than was in use."""

import random

import torch
from torch import Tensor

from multibranch.nn.cache import Room

LIKE = torch.zeros(())


def held(room: Room) -> int:
    return sum(piece.numel() for piece in room._free)


def test_a_piece_is_in_one_hand_at_a_time_and_used_again() -> None:
    room = Room()
    first, second = room.take(LIKE, 10, 10), room.take(LIKE, 10, 10)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    room.give(first)
    third = room.take(LIKE, 3, 30)
    assert third.shape == (3, 30)
    assert third.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()


def test_types_are_kept_apart() -> None:
    room = Room()
    room.give(room.take(LIKE, 100))
    assert room.take(LIKE.half(), 50).dtype == torch.float16
    assert room.take(LIKE, 50).dtype == torch.float32


def test_what_is_held_follows_what_was_in_use_however_sizes_vary() -> None:
    """Each batch takes pieces a little unlike those of the batch before, and gives all back."""
    draw, room, most = random.Random(1), Room(), 0
    for _ in range(300):
        scale = draw.uniform(0.5, 1.5)
        pieces: list[Tensor] = [
            room.take(LIKE, int(scale * draw.choice([400, 1000, 4000]) * draw.uniform(0.9, 1.1)))
            for _ in range(12)
        ]
        most = max(most, sum(piece.numel() for piece in pieces))
        for piece in pieces:
            room.give(piece)
    assert 0 < held(room) < 1.2 * most


def test_what_overflowed_is_not_handed_on() -> None:
    room = Room()
    for poison in (float("nan"), float("inf")):
        piece = room.take(LIKE, 50)
        piece[7] = poison
        room.give(piece)
        assert bool(room.take(LIKE, 50).isfinite().all())
