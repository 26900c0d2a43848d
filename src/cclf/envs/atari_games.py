"""The 26 games of Atari 100K: what each is. Data only, standard library alone."""

ATARI_GAMES: dict[str, str] = {
    "Alien": "clear corridors of eggs, chased by aliens",
    "Amidar": "paint the edges of a lattice",
    "Assault": "shoot ships while the cannon must not overheat",
    "Asterix": "run between lanes: take some things, avoid others",
    "BankHeist": "drive through mazes and rob their banks",
    "BattleZone": "fight tanks in first person",
    "Boxing": "land more punches than the other boxer",
    "Breakout": "break bricks with a ball and a paddle",
    "ChopperCommand": "protect a convoy by helicopter",
    "CrazyClimber": "climb a skyscraper",
    "DemonAttack": "shoot waves of demons",
    "Freeway": "take a chicken across ten lanes of traffic",
    "Frostbite": "jump over ice floes to build an igloo",
    "Gopher": "keep a gopher from the carrots",
    "Hero": "fly and blast through mines to save miners",
    "Jamesbond": "drive, fly and dive past everything that shoots",
    "Kangaroo": "climb to the joey, boxing monkeys",
    "Krull": "four scenes of a quest, a different skill in each",
    "KungFuMaster": "fight through the floors of a temple",
    "MsPacman": "eat a maze of pellets, chased by ghosts",
    "Pong": "return the ball",
    "PrivateEye": "drive through a town for clues, which are rare",
    "Qbert": "hop over every cube of a pyramid",
    "RoadRunner": "eat seeds and run from the coyote",
    "Seaquest": "save divers by submarine before the air runs out",
    "UpNDown": "drive over hills for flags, jumping on other cars",
}


def game_name(spelling: str) -> str:
    """The name that is used for a game, from any spelling: the one in the table, or CamelCase for
    any other game.

    >>> game_name("ms_pacman"), game_name("mspacman"), game_name("space_invaders"), game_name("TicTacToe3D")
    ('MsPacman', 'MsPacman', 'SpaceInvaders', 'TicTacToe3D')
    """
    known = {name.lower(): name for name in ATARI_GAMES}
    camel_case = "".join(word[:1].upper() + word[1:] for word in spelling.split("_"))
    return known.get(camel_case.lower(), camel_case)
