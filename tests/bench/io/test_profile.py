"""Profiles are files of facts; a wrong one is refused with the name of what is wrong."""

from pathlib import Path

import pytest

from phalanx.bench.io.scaling import PROFILES, profile_text, read_profile
from phalanx.errors import UserError

# files × samples a file · bytes a sample · batch · compute s/step · floor
FACTS = {
    "unet3d": (168, 1, 146_600_628, 7, {"a100": 0.636, "h100": 0.323}, 0.90),
    "resnet50": (1024, 1251, 114_660, 400, {"a100": 0.435, "h100": 0.224}, 0.90),
    "cosmoflow": (524_288, 1, 2_828_486, 1, {"a100": 0.00551, "h100": 0.0035}, 0.70),
    "bert": (500, 313_532, 2_500, 48, {"v100": 0.968}, 0.99),
}


@pytest.mark.parametrize("name", PROFILES)
def test_the_facts(name: str) -> None:
    profile = read_profile(name)
    assert profile.name == name
    assert profile.source
    found = (profile.num_files, profile.samples_per_file, profile.sample_bytes, profile.batch_size)
    assert (*found, profile.compute_s, profile.utilisation_floor) == FACTS[name]


def test_what_is_printed_can_be_read_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(profile_text("unet3d"))
    assert read_profile(str(path)) == read_profile("unet3d")


BAD = {
    "an unknown field": ("sample_bytes:", "sample_byte:", "sample_byte"),
    "no samples": ("num_files: 1024", "num_files: 0", "$.num_files"),
    "a word for a number": ("batch_size: 400", "batch_size: many", "$.batch_size"),
    "no time": ("a100: 0.435", "a100: -1", "$.compute_s"),
    "no accelerator": ("{a100: 0.435, h100: 0.224}", "{}", "names no accelerator"),
    "a floor above 1": ("0.90", "90", "$.utilisation_floor"),
    "no YAML": ("name: resnet50", "name: [", "--profile"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_profile_is_refused(tmp_path: Path, case: str) -> None:
    before, after, message = BAD[case]
    path = tmp_path / "mine.yaml"
    text = profile_text("resnet50")
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(UserError) as raised:
        read_profile(str(path))
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [("smoke", "is not one of unet3d"), ("no.yaml", "cannot be read: No such file")],
)
def test_a_profile_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_profile(name)
