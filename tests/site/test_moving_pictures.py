"""The moving pictures are what the simulator's runs give, and can be seen without motion."""

import re
from xml.etree import ElementTree

import pytest
from docs.moving_pictures import CUT, DOMINO, FOLDER, PICTURES

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", params=sorted(PICTURES))
def picture(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, PICTURES[request.param]()


def test_the_committed_pictures_are_current(picture: tuple[str, str]) -> None:
    name, made = picture
    assert (FOLDER / name).read_text() == made, "run `make docs`"


def test_a_picture_needs_no_script_and_no_network(picture: tuple[str, str]) -> None:
    root = ElementTree.fromstring(picture[1])
    assert not list(root.iter(f"{SVG}script")) and not re.search(r"(?:href|src)=", picture[1])
    assert not re.search(r"url\((?!#)", picture[1])


def test_who_prefers_no_motion_sees_the_last_frame_alone(picture: tuple[str, str]) -> None:
    name, made = picture
    root = ElementTree.fromstring(made)
    frames = {
        each.get("class", "").removeprefix("frame ")
        for each in root.iter(f"{SVG}g")
        if "frame " in each.get("class", "")
    }
    still = re.findall(r"^\S+ \.(f\d+) \{ opacity: 1; \}", made, re.MULTILINE)
    assert still == [f"f{len(frames) - 1}"], name
    assert re.search(r"prefers-reduced-motion: reduce\) \{ \S+ \* \{ animation: none !important", made)


def test_the_cut_has_messages_in_transit_and_markers_and_no_orphan() -> None:
    made = PICTURES[CUT]()
    assert len(re.findall(r'class="message in-transit"', made)) > 1 < len(re.findall(r'class="message marker"', made))
    assert 'class="message orphan"' not in made


def test_every_round_of_the_domino_goes_further_back() -> None:
    made = PICTURES[DOMINO]()
    captions = re.findall(r'class="caption"[^>]*>([^<]*)<', made)
    assert len(captions) > 5 and "initial state" in captions[-1]
    lines = re.findall(r'class="recoveryline" d="(M[^"]*L[^"]*)"', made)
    reached = [sum(map(float, re.findall(r"[ML]([\d.]+)", line))) for line in lines]
    assert len(reached) > 5 and reached == sorted(reached, reverse=True)


def test_lines_are_behind_the_numbers_of_checkpoints(picture: tuple[str, str]) -> None:
    name, made = picture
    classes = [str(each.get("class")) for each in ElementTree.fromstring(made).iter()]
    lines = [place for place, kind in enumerate(classes) if kind == "fronts"]
    assert lines and max(lines) < classes.index("number"), name
