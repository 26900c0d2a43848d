"""Contrastive coefficients of the 26 games of Atari 100K: the two papers that use them disagree."""

GAMES = (
    *(
        "Alien",
        "Amidar",
        "Assault",
        "Asterix",
        "BankHeist",
        "BattleZone",
        "Boxing",
        "Breakout",
        "ChopperCommand",
    ),
    *(
        "CrazyClimber",
        "DemonAttack",
        "Freeway",
        "Frostbite",
        "Gopher",
        "Hero",
        "Jamesbond",
        "Kangaroo",
        "Krull",
    ),
    *(
        "KungFuMaster",
        "MsPacman",
        "Pong",
        "PrivateEye",
        "Qbert",
        "RoadRunner",
        "Seaquest",
        "UpNDown",
    ),
)
# Contrastive coefficient of each game in CURL's Rainbow code (curl_rainbow at 40bf738): this one
# for four games, 1 for the rest.
CURL_COEFFICIENTS = dict.fromkeys(GAMES, 1.0) | dict.fromkeys(
    ("Pong", "Boxing", "PrivateEye", "Freeway"), 0.01
)
# And in the CCLF paper's table of settings: 1 for six games, this one for the rest.
CCLF_COEFFICIENTS = dict.fromkeys(GAMES, 1e-4) | dict.fromkeys(
    ("Alien", "BankHeist", "BattleZone", "Kangaroo", "KungFuMaster", "MsPacman"), 1.0
)
