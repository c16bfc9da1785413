"""The public bug reports: each is a kind of fault, and each kind is held by tests that say so.

Their inputs are in those tests, written by us, so that a clean clone has them too. Here the
collection is held against the list: a report that is new, or a test that is gone, shows.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

from syncrawl.testing.hostile import hostile_site
from tests.support import cases_file

TESTS = Path(__file__).parent.parent

# What we do otherwise than a report asks for, and why.
DIFFERENCES = {
    "bug29": "No HEAD is ever sent; an empty answer that names a coding is not decoded.",
    "bug37": "No cookie is kept, so none is stale.",
    "bug49": "Images are not followed; attribute names are compared without regard to case.",
    "bug78": "TLS below 1.2 and unsafe renegotiation stay off: a failure of class tls, told so.",
}

# Where each is held: tests by their names, behaviours of the hostile site by theirs
# after a colon.
HELD: dict[str, tuple[str, ...]] = {
    "bug01": ("test_a_dripping_server_is_left_at_the_deadline", ":drip-body"),
    "bug02": ("test_a_dripping_server_is_left_at_the_deadline", ":drip-head"),
    "bug03": ("test_silence_ends_earlier_than_the_total", ":stalls"),
    "bug04": ("test_an_endless_body_ends_at_the_cap", ":endless-body", ":endless-chunks"),
    "bug05": ("test_a_body_cut_short_is_incomplete", ":too-short"),
    "bug07": ("test_a_connection_that_cannot_be_trusted_is_not_used_again", ":no-chunks"),
    "bug08": ("test_a_length_that_is_no_number_counts_as_none", ":hex-prefix", ":signed-chunk"),
    "bug10": ("test_interim_answers_are_not_the_answer", ":interim", ":interim-flood"),
    "bug12": ("test_a_stale_connection_is_replaced_once", ":reset-on-reuse"),
    "bug13": ("test_no_odd_line_hides_the_others", ":blank-in-name"),
    "bug14": ("test_no_odd_line_hides_the_others", ":blank-before-colon"),
    "bug15": ("test_no_odd_line_hides_the_others", ":blank-first"),
    "bug19": ("test_a_byte_above_ascii_in_a_field_is_kept", ":bytes-in-field"),
    "bug21": ("test_gzip_as_it_is_found", ":gzip-tail"),
    "bug23": ("test_deflate_in_both_meanings", ":deflate-tail"),
    "bug24": ("test_public_bombs", ":gzip-bomb", ":br-bomb", ":bomb-of-302", ":bomb-of-404"),
    "bug26": ("test_a_cut_stream_is_kept_and_flagged", ":gzip-cut"),
    "bug27": ("test_gzip_is_known_by_its_bytes_twice_at_most", ":gzip-twice"),
    "bug28": ("test_gzip_is_known_by_its_bytes_twice_at_most",),
    "bug29": (":coding-of-nothing",),
    "bug31": ("test_location", ":to-bytes"),
    "bug33": ("test_location", ":to-tabs"),
    "bug37": ("test_no_cookie_is_kept", ":cookies"),
    "bug38": ("test_redirects", ":to-file", ":to-data", ":to-script", ":to-ftp"),
    "bug41": ("test_a_link_that_is_none_costs_no_other", ":link-garbage", ":to-bracket"),
    "bug42": ("test_names_dns_serves_and_idna_refuses",),
    "bug44": ("test_length_is_of_what_is_requested", ":link-64k"),
    "bug45": (":nested", ":growing"),
    "bug47": ("test_targets_in_document_order",),
    "bug48": ("test_a_long_link_is_taken_whole",),
    "bug49": ("test_targets_in_document_order",),
    "bug50": ("test_nuls_are_dropped_and_a_link_that_held_one_is_refused", ":nul"),
    "bug51": ("test_no_link_is_lost_however_deep", ":deep", ":deep-300"),
    "bug52": ("test_long_texts_do_not_end_the_page", ":text-9mb"),
    "bug53": ("test_a_document_without_elements_has_no_links_and_no_error", ":empty"),
    "bug55": ("test_labels", ":charset-none", ":charset-codec"),
    "bug56": ("test_detection_looks_at_a_bounded_part", ":odd-byte"),
    "bug57": ("test_encodings_and_line_ends", ":robots-bom"),
    "bug58": ("test_encodings_and_line_ends", ":robots-bytes"),
    "bug59": ("test_robots_that_fail_keep_a_host_closed_until_they_answer", ":robots-silent"),
    "bug60": ("test_what_a_status_means", ":robots-503", ":robots-reset"),
    "bug62": ("test_sitemaps_belong_to_the_file_not_to_a_group", ":robots-no-agent"),
    "bug65": ("test_a_database_locked_by_another_process_says_so",),
    "bug69": ("test_kills_at_random_moments",),
    "bug70": ("test_kills_at_random_moments",),
    "bug75": (
        "test_a_dead_address_leaves_time_for_the_next",
        "test_families_take_turns_and_the_one_that_worked_goes_first",
    ),
    "bug77": ("test_a_407_is_the_set_ups_fault", "test_http_through_a_proxy"),
    "bug78": ("test_a_server_that_speaks_no_tls", "test_tls_is_no_older_than_1_2"),
    "bug79": (
        "test_many_threads_share_one_fetcher",
        "test_idle_connections_are_bounded_over_all_hosts",
    ),
    "bug81": ("test_a_loop_across_gates_ends", ":chain"),
}


def functions() -> set[str]:
    """The names of all tests in the suite."""
    return {
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


def test_what_holds_the_reports_is_there() -> None:
    places = {place for held in HELD.values() for place in held}
    with hostile_site() as hostile:
        there = functions() | {f":{name}" for name in hostile.behaviours}
    assert places - there == set()
    assert DIFFERENCES.keys() <= HELD.keys()


def test_each_public_report_is_held() -> None:
    lines = cases_file("bugs.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["id"] for line in lines if line.strip()} == HELD.keys()
