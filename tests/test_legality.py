"""docs/legality.md describes the present options."""

from legality import GROUPS, PAGE, page, rows

from tandem.contracts import DOMAINS
from tandem.legality.domains import refusal


def test_the_page_is_that_of_the_options():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make legality`"


def test_every_domain_has_a_way_to_train_in_every_group():
    for domain in DOMAINS:
        for group in set(GROUPS) - {"kl"}:  # whose coefficient may be 0
            ways = [called for _, called in rows(group)]
            assert any(not any(refusal(f, domain, group) for f in way) for way in ways)
