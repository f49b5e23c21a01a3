"""Words, folded, that tell little of a title."""


def _set(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


COMMON_WORDS = _set(
    "a about after again against age all am american among an ancient and animals another",
    "anthology are art as at autobiography baby back bad be beautiful beauty become before",
    "beginning being beside best better between beyond bible big biography birth black blood",
    "blue body bone book books born boy boys bride brother brothers business by call can case",
    "cat century change child children christmas church city club cold collected collection",
    "color come complete country court crime critical culture dance dark daughter day days dead",
    "dear death deep desire devil diary do dog dont door down dragon dream dreams early earth",
    "east edition education eight end england english essays ever every eyes face faith fall",
    "family father fifty fire first five flowers for forever four free friend friends from game",
    "garden ghost gift girl girls god gods going gold golden good great green guide hand happy",
    "has have he heart heaven hell her here hidden high his history home hope house how human i",
    "ii iii illustrated im in inside into introduction is island it its journey just key kids",
    "killer king kingdom kiss know lady land language last law learning leaves letters lie life",
    "light like lion little live lives living london long lord lost love lovers made magic make",
    "making man manual many master me memoir memoirs memories men mind miss modern money moon",
    "more mother mountain moving mr mrs murder music my mystery name nature never new night",
    "nine no north not notes nothing novel novels ocean of off old on once one only or other",
    "our out over own paper paradise part past path peace people perfect place play plays poems",
    "poetry politics power practice prince princess promise queen quest question race rain red",
    "report return rise river road room rose rules running sea season second secret secrets",
    "selected series seven sex shadow she short sister sisters six sky sleep small snow society",
    "some son song songs soul south space spirit star stars state still stone stories storm",
    "story strange street study summer sun survival sweet sword tale tales teaching ten than",
    "that thats the their them then there these they thing things this those thousand three",
    "through time times to today touch trail tree trouble true truth twelve two under",
    "understanding united universe unknown until up us vol volume voyage walk war was watch",
    "water way we wedding west what when where which whisper white who why wild will wind",
    "winter witch with within without wolf woman women wonder wood word words work works world",
    "worlds writing writings year years you young your",
)
"""Words of titles at large. Not stop words: they count, only for less."""

NOISE_WORDS = _set(
    "annas annotated archive author azw3 book by djvu ebook ed edition editions epub fb2",
    "illustrated isbn lib libgen library mobi novel ocr org pdf press publisher retail scan txt",
    "unabridged vol volume z zlib",
)
"""Words that files and lists add to titles."""
