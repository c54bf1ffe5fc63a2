"""Words and names that instructions count: stop words, pronouns, conjunctions, verbs, names, countries, capitals."""

from __future__ import annotations

_STOP = """
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it its itself they them their
theirs themselves what which who whom this that these those am is are was were be been being have has had having do does did doing a an the and
but if or because as until while of at by for with about against between into through during before after above below to from up down in out on
off over under again further then once here there when where why how all any both each few more most other some such no nor not only own same so
than too very can will just should now s t d m o ll re ve y don ain aren couldn didn doesn hadn hasn haven isn ma mightn mustn needn shan shouldn
wasn weren won wouldn
"""
STOP_WORDS = frozenset(_STOP.split())
CONJUNCTIONS = frozenset(("and", "but", "for", "nor", "or", "so", "yet"))
_PRONOUNS = """
i me we us you he him she her it they them my mine our ours your yours his hers its their theirs myself ourselves yourself yourselves himself
herself itself themselves this that these those who whom whose which what whoever whomever whatever whichever anybody anyone anything everybody
everyone everything nobody nothing somebody someone something each either neither both all some any none one oneself
"""
PRONOUNS = frozenset(_PRONOUNS.split())
_NAMES = """
Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel
Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas
Nora Andrew Aria Joseph Claire Ryan Stella Jonathan
"""
PERSON_NAMES = tuple(_NAMES.split())
"""The names that the instruction itself lists."""
_VERBS = """
accept access achieve act adapt add address adjust admit adopt advise afford agree aim align allow analyze answer apply appreciate approach approve
argue arrange arrive ask assemble assess assign assist assume attach attack attempt attend avoid awaken bake balance be bear beat become begin
behold believe bend bet bind bite blend blow boil borrow bounce break breathe bring browse build burn buy calculate call capture care carry carve
catch cause celebrate challenge change charge check cheer chew choose chop circle claim clarify classify clean clear click climb close collect
combine come command communicate compare compete complete compose compute conceive concentrate conduct configure connect consider consist construct
consult consume contact contain continue contrast control convert convey cook copy correct count cover craft create cross cry cultivate cut dance
dare deal decide declare decorate dedicate define delete deliver delve demand demonstrate depend describe design destroy detail detect determine
develop devise dig direct disconnect discover discuss display dissolve distinguish distribute dive divide do document download draft draw dream
dress drink drive drop dry earn eat edit educate elevate embark embrace emerge emphasize employ empower enable encourage end endure engage enhance
enjoy ensure enter envision establish estimate evaluate examine exchange execute exercise exist expand expect experience experiment explain explore
export express extend extract face fail fall feed feel fetch fight figure fill filter find finish fit fix float flow fly focus fold follow forge
forget forgive form foster free freeze gain gather gaze generate get give glance go govern grab grant grasp grow guard guess guide handle hang
happen harness have heal hear heat help hide highlight hit hold honor hope host hunt identify ignite ignore illustrate imagine implement import
improve include incorporate increase indicate inform initialize innovate insert inspect install integrate interpret introduce invent invest
investigate invite involve iterate join journey jump justify keep kick kill know label land last laugh launch lay lead lean leap learn leave lend
let leverage lie lift light like limit link list listen live load locate lock log look lose love lower maintain make manage map march mark master
match maximize measure meet melt mention merge mind minimize mix modify monitor mount move multiply name navigate need negotiate note notice
nourish nurture observe obtain occur offer open operate optimize order organize outline overcome own pack paint park participate pass pause pay
perform persist pick picture place plan plant play plunge point ponder pour practice pray prefer prepare present preserve press prevent print
prioritize proceed process produce program promote propose protect prove provide publish pull purchase pursue push put question quit raise reach
react read realize recall receive recognize recommend reconsider record reduce refer refine reflect register reject relate relax release rely
remain remember remind remove rename render repair repeat replace report represent request require research resist resolve respect respond rest
restore retrieve return reveal review revise ride rinse rise roam roll rotate rub run rush sail save say scan schedule search season secure see
seek seem select sell send separate serve set settle sew shake shape share shift shine shoot show shut simmer simplify sing sit sketch skip sleep
slice slide slip smell smile solve sort speak specify spend spin spread sprinkle stand start state stay steal step stick stir stop store strengthen
stretch strike strive structure struggle study submit substitute subtract succeed suggest summarize supply support suppose surround survive
swap sweep swim switch synthesize tackle take talk target taste teach tear tell tend test thank think throw tie toss touch trace track trade train
transcend transform translate travel treat trust try turn twist understand undergo undertake unify unite unleash unlock unravel update upgrade
upload use utilize validate value venture verify view visit visualize wait wake walk wander want warm wash watch wear weave welcome whisk whisper
widen win wish witness wonder work worry wrap write yield zoom
"""
VERBS = frozenset(_VERBS.split())
_FORMS = """
am is are was were been being has had having does did doing done went gone ran came took taken gave given made said saw seen knew known thought found
began begun wrote written spoke spoken broke broken chose chosen drove driven grew grown threw thrown flew flown drew drawn wore worn rose risen
can could will would shall should may might must let's stood held kept left lost meant met paid read sent sat slept sold spent told taught understood
won built brought bought caught fell felt fought forgot got heard hid led
"""
VERB_FORMS = frozenset(_FORMS.split())
NON_VERBS = frozenset(
    (
        "nothing",
        "something",
        "anything",
        "everything",
        "during",
        "morning",
        "evening",
        "string",
        "spring",
        "ceiling",
        "sibling",
        "darling",
        "pudding",
    )
)
"""Words that end like a verb and are not verbs."""
_AFRICA = """
algeria|angola|benin|botswana|burkina faso|burundi|cabo verde,cape verde|cameroon|central african republic|chad|comoros
democratic republic of the congo,congo democratic republic of the,dr congo,drc,democratic republic of congo,congo kinshasa
republic of the congo,congo republic of the,congo,republic of congo,congo brazzaville|cote d'ivoire,ivory coast|djibouti|egypt|equatorial guinea
eritrea|eswatini,swaziland|ethiopia|gabon|gambia,the gambia,gambia the|ghana|guinea|guinea-bissau,guinea bissau|kenya|lesotho|liberia|libya
madagascar|malawi|mali|mauritania|mauritius|morocco|mozambique|namibia|niger|nigeria|rwanda|sao tome and principe,sao tome & principe|senegal
seychelles|sierra leone|somalia|south africa|south sudan|sudan|tanzania|togo|tunisia|uganda|zambia|zimbabwe
"""
AFRICAN_COUNTRIES: dict[str, str] = {
    name: names.split(",")[0].strip() for line in _AFRICA.strip().splitlines() for names in line.split("|") for name in names.split(",")
}
"""The 54 countries of Africa in the United Nations, by every spelling."""
NORTHERN_CAPITALS: tuple[tuple[str, ...], ...] = (
    ("reykjavik",), ("helsinki",), ("oslo",), ("tallinn",), ("stockholm",), ("riga",), ("moscow",), ("copenhagen",), ("vilnius",), ("minsk",),
    ("dublin",), ("berlin",), ("amsterdam",), ("warsaw",), ("london",), ("astana", "nur-sultan"), ("brussels",), ("kyiv", "kiev"), ("prague",),
    ("luxembourg", "luxembourg city"), ("paris",), ("vienna",), ("bratislava",), ("budapest",), ("vaduz",), ("chisinau",),
    ("bern", "berne"), ("ljubljana",), ("zagreb",),
)  # fmt: skip
"""Capitals of Europe north of 45 degrees, from north to south, with other spellings."""
OPTIONAL_CAPITALS = frozenset(("astana",))
"""Capitals whose country is not always counted as European."""


def is_verb(word: str) -> bool:
    """Whether a word is a verb in some form, by a list of common verbs and the endings of English.

    >>> is_verb("Running"), is_verb("Explored"), is_verb("Morning")
    (True, True, False)
    """
    word = word.lower().replace("’", "'")
    if word in VERBS or word in VERB_FORMS:
        return True
    if word.endswith("ing") and len(word) > 5:
        return word not in NON_VERBS
    for ending in ("ing", "ed", "es", "s", "d"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 1:
            doubled = stem[:-1] if len(stem) > 2 and stem[-1] == stem[-2] else stem
            if {stem, stem + "e", doubled, stem.removesuffix("i") + "y" if stem.endswith("i") else stem} & VERBS:
                return True
    return False
