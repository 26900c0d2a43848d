import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cclf.data.augmentations import center_crop_corners, crop, sample_crop_corners

CPU = torch.device("cpu")


@given(data=st.data(), frame=st.integers(1, 12), views=st.integers(1, 4), batch=st.integers(1, 4))
def test_crop_equals_slicing(data: st.DataObject, frame: int, views: int, batch: int) -> None:
    pixels = data.draw(st.integers(1, frame))
    seed = data.draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (batch, 3, frame, frame), generator=generator, dtype=torch.uint8)
    origins = torch.randint(frame - pixels + 1, (views, batch, 2), generator=generator)
    result = crop(images, origins, pixels)
    assert result.inputs.dtype == torch.uint8
    assert torch.equal(result.crop_corners, origins)
    for view in range(views):
        for sample in range(batch):
            y, x = origins[view, sample].tolist()
            assert torch.equal(
                result.inputs[view, sample], images[sample, :, y : y + pixels, x : x + pixels]
            )


def test_crop_outside_the_image_is_an_error() -> None:
    with pytest.raises(IndexError):
        crop(torch.zeros(1, 1, 5, 5), torch.tensor([[[4, 0]]]), 2)


@pytest.mark.parametrize("last_offset", [False, True])
def test_last_offset_is_sampled_only_on_request(last_offset: bool) -> None:
    origins = sample_crop_corners(5, 2_000, 20, 16, last_offset, torch.Generator().manual_seed(0))
    assert sorted(origins.unique().tolist()) == ([0, 1, 2, 3, 4] if last_offset else [0, 1, 2, 3])


@given(
    seed=st.integers(0, 2**32), frame=st.integers(1, 30), data=st.data(), last_offset=st.booleans()
)
def test_no_crop_leaves_the_image(
    seed: int, frame: int, data: st.DataObject, last_offset: bool
) -> None:
    pixels = data.draw(st.integers(1, frame))
    origins = sample_crop_corners(
        3, 50, frame, pixels, last_offset, torch.Generator().manual_seed(seed)
    )
    assert origins.shape == (3, 50, 2)
    assert origins.min() >= 0
    assert origins.max() + pixels <= frame


def test_offsets_are_uniform_and_independent() -> None:
    draws = 100_000
    origins = sample_crop_corners(
        5, draws // 5, 100, 84, False, torch.Generator().manual_seed(1)
    ).view(-1, 2)
    cells = torch.bincount(origins[:, 0] * 16 + origins[:, 1], minlength=256).double()
    expected = draws / 256
    # 255 degrees of freedom: mean 255, deviation sqrt(510) = 22.6
    chi_squared = ((cells - expected) ** 2 / expected).sum()
    assert 255 - 5 * 22.6 < chi_squared < 255 + 5 * 22.6


def test_centre_crop_leaves_the_same_margin_on_every_side() -> None:
    origins = center_crop_corners(2, 3, 100, 84, CPU)
    assert origins.shape == (2, 3, 2)
    assert (origins == 8).all()
    image = torch.arange(100.0).repeat(100, 1)[None, None]
    columns = crop(image, origins[:, :1], 84).inputs[0, 0, 0, 0]
    # 8 columns cut off on the left, 92..99 on the right
    assert (columns[0], columns[-1]) == (8.0, 91.0)
