"""Word lists of the synthetic tasks."""

NAMES = (
    "Anna Ben Carla David Emma Felix Grace Henry Iris Jack Kate Liam Maria Noah Olivia Paul Rosa "
    "Sam Tina Victor Wendy Yusuf Zoe Amir Bella Chen Dora Erik Farah Gita Hugo Ines Jonas Karim "
    "Lena Mei Nina Oscar Petra Quinn Ravi Sofia Tom Uma"
).split()
OBJECTS = (
    "apples pears plums books pencils marbles stamps shells cards coins buttons stickers beads "
    "oranges lemons eggs cookies candles flowers bottles cups plates ribbons bricks tickets"
).split()
COLOURS = (
    "red blue green yellow white black brown golden silver purple orange grey pink violet amber"
).split()
THINGS = (
    "lantern bridge tower garden river castle mirror window ladder basket kettle wagon anchor "
    "compass hammer drum violin candle statue fountain harbour library market temple orchard"
).split()
PLACES = (
    "Amber Hill|Birch Lake|Cedar Town|Dover Creek|Elm Park|Fox Valley|Green Harbour|High Bridge|"
    "Iron Gate|Long Meadow|Maple Field|North Ferry|Old Mill|Pine Ridge|Stone Village|West Cove"
).split("|")
CITIES = (
    "Berlin Paris London Madrid Rome Vienna Oslo Dublin Athens Lisbon Prague Warsaw Tokyo Cairo "
    "Lima Quito Nairobi Delhi Beijing Ottawa"
).split()
WORDS = (
    "able area army away baby back ball band bank base bear beat bell bird blow blue boat body "
    "bone book born both bowl call calm camp card care case cave city clay coal coat cold come "
    "cook cool copy corn cost crew dark data date dawn days deal deep desk door down draw drop "
    "dust duty earth east easy edge even fact fair fall farm fast feel film find fire fish flag "
    "flat flow folk food foot form free full game gate gift girl give glad glass goal gold good "
    "grass gray grow half hall hand hard hear heat help hill hold home hope horse hour house "
    "idea inch iron island join jump keep king land large late lead leaf left light line list "
    "long look lost loud love made main make many map mark meal mind mine moon more morning "
    "mountain move much music name near neck need news night north note ocean open paper part "
    "past path peace people piece place plan plant play point pool poor port post power press "
    "quiet rain reach read rest rice rich ride right ring rise river road rock roof room root "
    "rope rose round rule sail salt sand school seat seed send shape sheep ship shoe shop short "
    "side sign silk sing size skin sleep slow small smile snow soft soil song soon south space "
    "spring stand star start stay steel step stone storm story street strong summer sun sweet "
    "table tail tall team tell tent test thin time tool town tree trip true turn valley voice "
    "wait walk wall warm wash water wave week west wheel white wide wild wind wing winter wish "
    "wood wool word work world yard year young"
).split()
VERBS = "get set load save read write find make open close check parse build send copy".split()
NOUNS = (
    "name path file line text token index value state cache buffer node list map key queue user "
    "item count size type table record header message session"
).split()

DEFINITIONS = {
    "an atom": "An atom is the smallest unit of a chemical element.",
    "a river": "A river is a natural stream of water that flows to a sea or a lake.",
    "a triangle": "A triangle is a shape with three straight sides and three corners.",
    "a square": "A square is a shape with four equal sides and four right angles.",
    "a circle": "A circle is the set of all points at the same distance from a centre.",
    "a compiler": "A compiler is a program that translates source code into machine code.",
    "a variable": "A variable is a name that refers to a value in a program.",
    "a function": "A function is a named piece of code that takes arguments and returns a value.",
    "a list": "A list is an ordered collection of values.",
    "a dictionary": "A dictionary is a collection that maps keys to values.",
    "a token": "A token is a short piece of text that a language model reads or writes.",
    "a tokenizer": "A tokenizer splits text into tokens and joins tokens back into text.",
    "a language model": "A language model is a program that predicts the next token of a text.",
    "speculative decoding": (
        "Speculative decoding lets a small draft guess several tokens, which the large model then "
        "checks in one step."
    ),
    "a cache": "A cache keeps results so that they need not be computed again.",
    "an island": "An island is a piece of land with water on all sides.",
    "a volcano": "A volcano is an opening in the ground through which lava and ash come out.",
    "a planet": "A planet is a large round body that moves around a star.",
    "a star": "A star is a large ball of hot gas that gives light.",
    "the moon": "The moon is the natural satellite of the earth.",
    "a library": "A library is a place where books are kept for reading and lending.",
    "a bridge": "A bridge is a structure that carries a road over a river or a valley.",
    "a prime number": "A prime number is a whole number above 1 that only 1 and itself divide.",
    "an even number": "An even number is a whole number that can be divided by 2.",
    "photosynthesis": "Photosynthesis is how plants turn light, water and air into sugar.",
    "gravity": "Gravity is the force that pulls masses towards each other.",
    "a week": "A week is a period of seven days.",
    "an hour": "An hour is a period of sixty minutes.",
    "a recipe": "A recipe is a list of ingredients and steps for cooking a dish.",
    "an orchestra": "An orchestra is a large group of musicians who play together.",
}
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome",
    "Austria": "Vienna", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Greece": "Athens", "Portugal": "Lisbon", "Poland": "Warsaw",
    "Ireland": "Dublin", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi",
    "Egypt": "Cairo", "Kenya": "Nairobi", "Peru": "Lima", "Canada": "Ottawa",
    "Cuba": "Havana", "Hungary": "Budapest", "Chile": "Santiago", "Turkey": "Ankara",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "early": "late", "open": "closed",
    "light": "dark", "high": "low", "long": "short", "old": "young", "rich": "poor",
    "wet": "dry", "full": "empty", "hard": "soft", "loud": "quiet", "strong": "weak",
    "happy": "sad", "left": "right", "up": "down", "near": "far", "true": "false",
}  # fmt: skip
SERIES = {
    "the days of the week": ("Monday Tuesday Wednesday Thursday Friday Saturday Sunday").split(),
    "the months of the year": (
        "January February March April May June July August September October November December"
    ).split(),
    "the four seasons": "spring summer autumn winter".split(),
    "the planets of the solar system": (
        "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"
    ).split(),
    "the colours of the rainbow": "red orange yellow green blue indigo violet".split(),
    "the vowels of the alphabet": "a e i o u".split(),
    "the first ten letters of the alphabet": list("abcdefghij"),
    "the continents": ("Africa|Antarctica|Asia|Australia|Europe|North America|South America").split(
        "|"
    ),
}
