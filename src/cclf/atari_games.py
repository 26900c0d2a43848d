"""The 26 games of Atari 100K: what each is, and the numbers that papers attach to it. Data only, standard library alone.

Scores of a random and of a human player are those of the CCLF paper's Atari table, which took them from the CURL and DrQ papers.
"""

from typing import NamedTuple


class Game(NamedTuple):
    summary: str
    random_score: float
    human_score: float


ATARI_GAMES: dict[str, Game] = {
    "Alien": Game("clear corridors of eggs, chased by aliens", 227.8, 7127.7),
    "Amidar": Game("paint the edges of a lattice", 5.8, 1719.5),
    "Assault": Game("shoot ships while the cannon must not overheat", 222.4, 742.0),
    "Asterix": Game("run between lanes: take some things, avoid others", 210.0, 8503.3),
    "BankHeist": Game("drive through mazes and rob their banks", 14.2, 753.1),
    "BattleZone": Game("fight tanks in first person", 2360.0, 37187.5),
    "Boxing": Game("land more punches than the other boxer", 0.1, 12.1),
    "Breakout": Game("break bricks with a ball and a paddle", 1.7, 30.5),
    "ChopperCommand": Game("protect a convoy by helicopter", 811.0, 7387.8),
    "CrazyClimber": Game("climb a skyscraper", 10780.5, 35829.4),
    "DemonAttack": Game("shoot waves of demons", 152.1, 1971.0),
    "Freeway": Game("take a chicken across ten lanes of traffic", 0.0, 29.6),
    "Frostbite": Game("jump over ice floes to build an igloo", 65.2, 4334.7),
    "Gopher": Game("keep a gopher from the carrots", 257.6, 2412.5),
    "Hero": Game("fly and blast through mines to save miners", 1027.0, 30826.4),
    "Jamesbond": Game("drive, fly and dive past everything that shoots", 29.0, 302.8),
    "Kangaroo": Game("climb to the joey, boxing monkeys", 52.0, 3035.0),
    "Krull": Game("four scenes of a quest, a different skill in each", 1598.0, 2665.5),
    "KungFuMaster": Game("fight through the floors of a temple", 258.5, 22736.3),
    "MsPacman": Game("eat a maze of pellets, chased by ghosts", 307.3, 6951.6),
    "Pong": Game("return the ball", -20.7, 14.6),
    "PrivateEye": Game("drive through a town for clues, which are rare", 24.9, 69571.3),
    "Qbert": Game("hop over every cube of a pyramid", 163.9, 13455.0),
    "RoadRunner": Game("eat seeds and run from the coyote", 11.5, 7845.0),
    "Seaquest": Game("save divers by submarine before the air runs out", 68.4, 42054.7),
    "UpNDown": Game("drive over hills for flags, jumping on other cars", 533.4, 11693.2),
}

# Contrastive coefficient of each game in CURL's Rainbow code (curl_rainbow at 40bf738): this one for four games, 1 for the rest.
CURL_COEFFICIENTS = dict.fromkeys(ATARI_GAMES, 1.0) | dict.fromkeys(("Pong", "Boxing", "PrivateEye", "Freeway"), 0.01)
# And in the CCLF paper's table of settings: 1 for six games, this one for the rest.
CCLF_COEFFICIENTS = dict.fromkeys(ATARI_GAMES, 1e-4) | dict.fromkeys(
    ("Alien", "BankHeist", "BattleZone", "Kangaroo", "KungFuMaster", "MsPacman"), 1.0
)


def game_name(spelling: str) -> str:
    """The one name of a game, however it was spelt: a game of the table, or CamelCase for any other.

    >>> game_name("ms_pacman"), game_name("mspacman"), game_name("space_invaders"), game_name("TicTacToe3D")
    ('MsPacman', 'MsPacman', 'SpaceInvaders', 'TicTacToe3D')
    """
    known = {name.lower(): name for name in ATARI_GAMES}
    camel_case = "".join(word[:1].upper() + word[1:] for word in spelling.split("_"))
    return known.get(camel_case.lower(), camel_case)
