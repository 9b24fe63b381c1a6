"""Text and picture of small loads, worked out by hand, and of the micro-batch environment."""

import gymnasium
import numpy as np
import pytest

from dalton.envs.micro_batch import MicroBatchPartitionEnv
from dalton.envs.render import BAR, GAP, HEIGHT, HELD, LINE, PAPER, PLAIN, picture, text

LOAD, HOLDERS = np.array([8, 4, 1, 0, 2]), np.array([True, False, True, False, False])


def test_text_by_hand():
    # The largest is a full block, the others are eighths of it; 8 over a mean of 3.
    assert text(LOAD, HOLDERS, "a title") == "a title\n█▄▁ ▂  max/mean 2.67\n^.^.."
    assert text(100 * LOAD, ~HOLDERS, "") == "\n█▄▁ ▂  max/mean 2.67\n.^.^^"
    # Blocks are the nearest eighth: 21/8 is 3, 0.48 is none.
    assert text(np.array([64, 21, 4, 3]), np.zeros(4, bool), "") == "\n█▃  " + "  max/mean 2.78\n...."


def test_text_without_load():
    assert text(np.zeros(3, np.int64), np.zeros(3, bool), "key 7") == "key 7\n     max/mean 1.00\n..."


def bars(image):
    """Colour and height of every bar, in its middle column, without the line."""
    columns = image[:, GAP + BAR // 2 :: BAR + GAP].copy()
    columns[HEIGHT // 2 - 1 : HEIGHT // 2 + 1] = columns[HEIGHT // 2 + 1]
    found = []
    for column in columns.swapaxes(0, 1):
        filled = (column != PAPER).any(axis=1)
        # All of a bar is of one colour and stands on the ground.
        assert filled[HEIGHT - filled.sum() :].all()
        assert len({tuple(pixel) for pixel in column[filled]}) <= 1
        found.append((tuple(column[-1].tolist()), int(filled.sum())))
    return found


def test_picture_by_hand():
    image = picture(LOAD, HOLDERS)
    assert (image.shape, image.dtype) == ((HEIGHT, 5 * BAR + 6 * GAP, 3), np.uint8)
    # Twice the mean, 6, is the full height of 240; 8 is cut.
    assert bars(image) == [(HELD, 240), (PLAIN, 160), (HELD, 40), (PAPER, 0), (PLAIN, 80)]
    # The mean is a line over all of the width, at half of the height; gaps are empty else.
    assert (image[HEIGHT // 2 - 1 : HEIGHT // 2 + 1] == LINE).all()
    gaps = np.delete(image, [HEIGHT // 2 - 1, HEIGHT // 2], axis=0).reshape(HEIGHT - 2, -1, 3)
    for left in range(0, image.shape[1], BAR + GAP):
        assert (gaps[:, left : left + GAP] == PAPER).all()
    np.testing.assert_array_equal(picture(1_000 * LOAD, HOLDERS), image)


def test_picture_without_load():
    image = picture(np.zeros(2, np.int64), np.ones(2, bool))
    assert bars(image) == [(PAPER, 0)] * 2
    assert (image[HEIGHT // 2] == LINE).all()


def test_a_micro_batch_shows_the_loads_and_its_most_frequent_key():
    params = {"workload": {"name": "zipf", "n_keys": 30, "n_tuples": 400}, "n_workers": 4, "batch_size": 50}
    words, image = (MicroBatchPartitionEnv(**params, render_mode=mode) for mode in ("ansi", "rgb_array"))
    assert MicroBatchPartitionEnv(**params).render() is None
    for env in (words, image):
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"^render\(\) was called before reset\(\)\Z"):
            env.render()
        _, info = env.reset(seed=1)
    hot = set()
    for at in range(9):
        load = words.batches.cluster.loads.load
        # Without a hot key, the first of the batch.
        hot.add(len(info["keys"]) > 0)
        key = info["keys"][0] if info["keys"] else words.batches.batch[0]
        held = words.batches.cluster.holders(key)
        assert words.render() == text(load, held, f"batch {at}, key {key}")
        np.testing.assert_array_equal(image.render(), picture(load, held))
        if at < 8:
            *_, info = [env.step(np.full((4, 4), 0.5)) for env in (image, words)][1]
    assert load.sum() == 400
    assert hot == {True, False}
