"""Places of a run that ranks leave by death, and spares take."""

from phalanx.parallel.places import Loss, Places


def test_a_spare_takes_the_place_of_a_rank_that_died() -> None:
    places = Places(3)
    assert [loss for loss in places.lose([1], 0.5, are_replaced=True) if loss.lost] == []
    places.note_vacant(calls=4, num_computing=2, num_living=4)
    assert not places.has_vacancy(4) and places.has_vacancy(5)
    admission = places.admit(5, [0, 2, 3])
    assert admission[:3] == ([0, 2, 3], [3], [1])
    assert 0.5 <= admission.seconds < 5
    assert places.has_vacancy(5) and not places.has_vacancy(6)
    assert [loss[0] for loss in places.lose([0, 3], 0.1, are_replaced=False)] == [[], [0, 3]]


def test_no_more_places_are_vacant_than_there_are_spares() -> None:
    places = Places(3)
    places.note_vacant(calls=2, num_computing=2, num_living=2)
    assert not places.has_vacancy(3)


def test_a_spare_that_dies_is_told_of_at_once() -> None:
    places = Places(3)
    told = places.lose([4, 1], 0.1, are_replaced=True)
    assert told == [Loss([4], 0.1, were_waiting=True)]
    assert places.vacated == [1]


def test_a_spare_knows_what_the_others_know() -> None:
    places = Places(3)
    places.take_over([0, 1, 2, 3], [2], 2.0)
    assert places.admit(7, [0, 1, 3, 4])[1:3] == ([4], [2])
