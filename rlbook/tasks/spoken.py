"""What is said in words or digits of its own: integers such as forty-two, and dates.

A date is year-month-day; what has the shape of one is no arithmetic.
"""

import re
from datetime import date

COUNTED = {
    **{"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7},
    **{"eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13},
    **{"fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18},
    "nineteen": 19,
}
TENS = {
    **{"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70},
    **{"eighty": 80, "ninety": 90},
}
ONES = "one|two|three|four|five|six|seven|eight|nine"
BELOW_HUNDRED = rf"(?:(?:{'|'.join(TENS)})(?:[- ](?:{ONES}))?|{'|'.join(COUNTED)})"
BELOW_THOUSAND = rf"(?:{BELOW_HUNDRED} hundred(?: (?:and )?{BELOW_HUNDRED})?|{BELOW_HUNDRED})"
INTEGER = re.compile(
    rf"(?:(?P<sign>minus|negative) )?(?:(?P<millions>{BELOW_THOUSAND}) million ?)?"
    rf"(?:(?P<thousands>{BELOW_THOUSAND}) thousand ?)?(?:and )?(?P<rest>{BELOW_THOUSAND})?"
)
MONTHS = "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
MONTHS += "sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
WORDED = re.compile(
    r"(?:[a-z]{3,6}day,? )?(?:(?P<year_>\d{4}),? )?"
    rf"(?:(?P<day>\d\d?) (?:of )?(?P<month>{MONTHS})|(?P<month_>{MONTHS})\.? (?P<day_>\d\d?))"
    r"\.?(?:,? (?P<year>\d{4}))?",
    re.I,
)
CHINESE = re.compile("(?P<year>\\d{4}) ?年 ?(?P<month>\\d\\d?) ?月 ?(?P<day>\\d\\d?) ?日")
YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d\d)\2(\d\d)")
YEAR_LAST = re.compile(r"(\d\d?)([-/.])(\d\d?)\2(\d{4})")
ORDER = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def spoken(text: str) -> int | None:
    """The integer that English words say; None if they say anything else."""
    found = INTEGER.fullmatch(text)
    parts = found.group("millions", "thousands", "rest") if found else ()
    if not found or not any(parts):
        return None
    millions, thousands, rest = map(below_thousand, parts)
    return (-1 if found["sign"] else 1) * (1_000_000 * millions + 1_000 * thousands + rest)


def below_thousand(words: str | None) -> int:
    """The integer that words say, which are known to be of one."""
    before, hundred, after = (words or "").rpartition("hundred")
    many, few = (
        sum({**COUNTED, **TENS}.get(word, 0) for word in re.split("[ -]", part))
        for part in (before, after)
    )
    return (100 * many if hundred else 0) + few


def numeric_date(text: str) -> str:
    """A date in digits, as itself if day and month could be exchanged; "" if it is none."""
    if found := YEAR_FIRST.fullmatch(text):
        return written(int(found[1]), int(found[3]), int(found[4])) or text
    if not (found := YEAR_LAST.fullmatch(text)):
        return ""
    one, other, year = int(found[1]), int(found[3]), int(found[4])
    read = {written(year, one, other), written(year, other, one)} - {""}
    return read.pop() if len(read) == 1 else text if read else ""


def worded_date(text: str) -> str:
    """A date with the name of its month; month-day if it has no year; "" if it is none."""
    if found := CHINESE.fullmatch(text):
        return written(*map(int, found.groups()))
    if not (found := WORDED.fullmatch(text.replace(" ,", ","))):
        return ""
    month = 1 + ORDER.index((found["month"] or found["month_"])[:3].casefold())
    day = int(found["day"] or found["day_"])
    if year := found["year"] or found["year_"]:
        return written(int(year), month, day)
    return written(2000, month, day)[5:]  # a leap year: 29 February is a day


def written(year: int, month: int, day: int) -> str:
    """A day as year-month-day; "" if there is no such day."""
    try:
        return date(year, month, day).isoformat()
    except ValueError:
        return ""
