"""Detect the language of a text by its script, and within a script by common words and letters. Deterministic, without a model."""

from __future__ import annotations

import re
from collections import Counter

SCRIPTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("kana", r"[\u3040-\u30ff\uff66-\uff9f]", ("ja",)),
    ("hangul", r"[\uac00-\ud7af\u1100-\u11ff]", ("ko",)),
    ("han", r"[\u4e00-\u9fff]", ("zh", "ja")),
    ("thai", r"[\u0e00-\u0e7f]", ("th",)),
    ("tamil", r"[\u0b80-\u0bff]", ("ta",)),
    ("telugu", r"[\u0c00-\u0c7f]", ("te",)),
    ("kannada", r"[\u0c80-\u0cff]", ("kn",)),
    ("malayalam", r"[\u0d00-\u0d7f]", ("ml",)),
    ("gujarati", r"[\u0a80-\u0aff]", ("gu",)),
    ("gurmukhi", r"[\u0a00-\u0a7f]", ("pa",)),
    ("bengali", r"[\u0980-\u09ff]", ("bn",)),
    ("hebrew", r"[\u0590-\u05ff]", ("he",)),
    ("greek", r"[\u0370-\u03ff]", ("el",)),
    ("arabic", r"[\u0600-\u06ff]", ("ar", "fa", "ur")),
    ("devanagari", r"[\u0900-\u097f]", ("hi", "mr", "ne")),
    ("cyrillic", r"[\u0400-\u04ff]", ("ru", "uk", "bg")),
    ("latin", r"[a-zA-Z\u00c0-\u024f\u1e00-\u1eff]", ("en", "es", "pt", "fr", "de", "it", "pl", "vi", "sw", "fi", "nl", "sv", "tr", "id")),
)
"""Scripts: name, letters, and the languages written in the script."""
COMMON_WORDS: dict[str, str] = {
    "en": "the of and to in is that it was for on are as with his they at be this have from or had by but not what all were we when your can "
    "said there an which she do their if will how its our would about who been has i you my he so up out no us me them than then these",
    "es": "de la que el en y a los se del las un por con no una su para es al lo como más pero sus le ya o este sí porque esta entre cuando muy "
    "sin sobre también me hasta hay donde quien desde todo nos durante todos uno les ni contra otros ese eso ser son está tiene",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à seu sua ou ser quando muito há "
    "nos já está eu também só pelo pela até isso ela entre era depois sem mesmo aos ter seus quem nas me esse eles são você",
    "fr": "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont la avec ou son sa aux cette mais nous "
    "comme on tout leur elle deux même ses peut être ces fait je vous ils très bien été sans d l c qu j n s",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er hat dass sie nach wird bei "
    "einer um am sind noch wie einem über einen so zum war haben nur oder aber vor zur bis mehr durch man ich wir ihr",
    "it": "di e il la che in a un per è una non sono del con si le da i dei come alla più nel anche al gli della ma ha lo delle questo o dal "
    "su ci se molto essere ai tra nella mi ti io perché suo sua quando era loro lui lei dell",
    "pl": "i w na z się nie do to że jest o jak po ale co za od przez dla ma są tak był tym już tylko jego czy ich może być oraz ten które "
    "która który jej przy pod ze ja te mnie sobie bardzo także gdy",
    "vi": "và của là có không được cho trong một các người này với để những đã khi từ đến như thì cũng về tôi bạn ra ở nhiều làm đó nó rất hay "
    "vào sẽ trên mà lại chúng phải hơn nên sau",
    "sw": "na ya wa kwa ni katika za la cha kuwa ili hii kama hiyo pia au lakini yake watu sana hivyo vya mimi wewe yeye sisi wao huu hizi baada "
    "kila zaidi moja nchi wake bila kwamba alikuwa",
    "fi": "ja on ei se että hän oli en mutta ovat kuin myös niin mitä tai jos kun voi sen olla joka ole vain sitä ne nyt tämä hänen sekä mukaan "
    "minä sinä he me te siitä jotka ollut mikä kaikki hyvin",
    "nl": "de het een en van ik te dat die in is niet op zijn met voor er maar om hem aan dan hij ook als je bij nog door wat uit kan naar heeft "
    "worden werd deze geen wel onze",
    "sv": "och i att det som en på är av för med den till inte om ett han men var jag sig från vi så kan man när år de eller har ska vid hon "
    "under också efter",
    "tr": "ve bir bu da de için ile olarak çok daha gibi en olan ne kadar sonra ama var ben o mi ya değil her oldu olduğu ki şey diye kendi bana",
    "id": "yang dan di ini itu dengan untuk dari tidak dalam pada adalah akan ke juga saya oleh karena ada mereka kita atau bisa sudah kami telah "
    "dapat seperti anda",
    "ru": "и в не на я что он с это а как по но из у за то все она так его от же бы для вы мы о к их мне было есть или если был только когда уже "
    "очень чтобы также который это может",
    "uk": "і в не на що я з у та це як за до але він від про й так для його вона ми був або вже є бути ви коли які тільки дуже також щоб який "
    "може їх мені цей ця ще",
    "bg": "и на да се в не е за от с по че са си му ще като но съм беше той тя това ги има много или след когато само най който също може аз ние "
    "вие техните",
    "ar": "في من على إلى أن عن هذا هذه التي الذي مع ما لا كان هو هي كل بعد أو قد كما بين لم ذلك إن ثم حيث عند أي لكن يكون كانت نحن أنا",
    "fa": "و در به از که این را با است برای آن یک خود تا بر هم نیز می شود شده هر یا ما بود من کرد دارد او آنها اما اگر های باید بسیار",
    "ur": "کے کی میں ہے اور سے کا کو اس یہ کہ پر نے ہیں بھی تھا ایک جو کر نہیں ہو لیے گیا وہ تو ہم تھے کیا جا ان اپنے آپ ہوتا",
    "hi": "के में है की और से का को पर यह कि एक भी हैं इस ने नहीं हो था कर वह लिए जो तो या तक थे साथ अपने हम मैं आप जब बहुत उनके",
    "mr": "आहे आणि या च्या तो ते ही हे व मध्ये आहेत होते होता नाही करून एक की त्या मी तर आपण साठी पण काय असे म्हणून त्याच्या खूप करण्यासाठी केले",
    "ne": "छ र को मा हो यो पनि ले लाई गर्न छन् भने एक थियो हुन् गरेको तथा वा हामी तर गर्ने म त्यो भएको यस नेपाल हुन्छ तपाईं धेरै गर्नुहोस् हामीले",
}
"""Common words of each language."""
DISTINCTIVE_LETTERS: dict[str, str] = {
    "es": "ñ¿¡", "pt": "ãõ", "fr": "œçêèù", "de": "äöüß", "it": "ìò", "pl": "łąęśżźćń", "vi": "ươđạảấầậắằẵẹẽếềểễệịọốồổộớờởợụủứừửữựỳỹ",
    "fi": "äö", "sv": "åäö", "tr": "ğışç", "uk": "іїєґ", "bg": "ъ", "ru": "ыэё", "fa": "پچژگی", "ur": "ٹڈڑںےہھ", "ar": "ةىيك", "mr": "ळ",
}  # fmt: skip
"""Letters that are typical of one language among those of a script."""
_SCRIPT = re.compile("|".join(f"(?P<{name}>{letters})" for name, letters, _ in SCRIPTS))
_WORDS = {name: frozenset(words.split()) for name, words in COMMON_WORDS.items()}
LANGUAGES = frozenset(name for _, _, names in SCRIPTS for name in names)
MAX_FOREIGN_FRACTION = 0.2
"""Maximum fraction of letters in another script: names and terms are allowed."""


def detect_language(text: str) -> str:
    """Detect the language of a text and return its ISO 639-1 code; "" if there are too few letters, or scripts are mixed.

    >>> detect_language("The cat is on the table."), detect_language("El gato está en la mesa."), detect_language("12 + 7")
    ('en', 'es', '')
    """
    counts = Counter(found.lastgroup or "" for found in _SCRIPT.finditer(text[:50_000]))
    if not counts:
        return ""
    if (
        counts["kana"]
        and counts["kana"] + counts["han"] > (1 - MAX_FOREIGN_FRACTION) * counts.total()
        and counts["kana"] > 0.1 * counts["han"]
    ):
        return "ja"
    script, most = counts.most_common(1)[0]
    if most < (1 - MAX_FOREIGN_FRACTION) * counts.total():
        return ""
    names = next(names for name, _, names in SCRIPTS if name == script)
    if len(names) == 1 or script == "han":
        return names[0]
    return _pick_language(names, text[:50_000].lower())


def _pick_language(language_codes: tuple[str, ...], text: str) -> str:
    """Pick the language of a script whose common words and letters are most frequent in a text."""
    said = Counter(re.findall(r"[^\W\d_]+(?:[\u0900-\u097f]+)*|[\u0900-\u097f]+", text))
    total = max(1, said.total())
    scores = {}
    for name in language_codes:
        known = sum(count for word, count in said.items() if word in _WORDS.get(name, ()))
        marks = sum(text.count(letter) for letter in DISTINCTIVE_LETTERS.get(name, ""))
        scores[name] = known / total + min(0.3, 2 * marks / max(1, len(text)))
    best, score = max(scores.items(), key=lambda pair: pair[1])
    if score == 0:
        return "en" if "en" in language_codes and text.isascii() else ""
    return best


def may_be_english(text: str) -> bool:
    """Whether a text is English, or too short to be recognized as another language.

    >>> may_be_english("HELLO WORLD"), may_be_english("hola mundo de la vida")
    (True, False)
    """
    return detect_language(text) == "en"
