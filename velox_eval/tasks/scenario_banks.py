"""The words that the bundled scenarios are made of: settings with two example entries, and things to ask for.

All of it is written for this project. Changing anything here changes the bundled data: raise `GENERATOR` in
scenarios.py and the task's version with it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """A frame for one scenario: what is to be written, and how its first two entries could read.

    The first sentence of each example is also its line in the list of demands, so the prompt shows how a line
    becomes an entry.
    """

    task: str
    first: str
    second: str


@dataclass(frozen=True)
class Family:
    """One kind of scenario. `type` is the entry word, `unit` what one entry is for."""

    type: str
    unit: str
    settings: tuple[Setting, ...]
    once: tuple[str, ...]
    range: tuple[str, ...]
    periodic: tuple[str, ...]


WEEK = Family(
    type="Week",
    unit="week",
    settings=(
        Setting(
            "Write the weekly log of Mara, who keeps a lighthouse",
            "Frost on every window. I cleaned the great lamp and counted four ships.",
            "Strong wind from the north. I mended a door and read by the stove.",
        ),
        Setting(
            "Write the weekly diary of Tomas, who bakes bread in a small town",
            "Cold mornings and long queues. I tried a new rye loaf and sold it all by ten.",
            "The oven smoked again. I cleaned it on Sunday and slept until noon.",
        ),
        Setting(
            "Write the weekly journal of Ines, who drives a tram",
            "New timetable, tired faces. I learned the route past the harbour by heart.",
            "Ice on the rails. We were late each morning, and nobody complained.",
        ),
        Setting(
            "Write the weekly notebook of Oskar, who teaches at a village school",
            "Twelve children, one stove. We read about rivers and drew maps of our street.",
            "Rain without end. The older ones helped the younger ones with sums.",
        ),
        Setting(
            "Write the weekly diary of Leila, who keeps bees on a hill",
            "The hives are quiet. I sorted jars, wrote labels and swept the shed.",
            "A mild spell. A few bees flew out, and I fed them sugar water.",
        ),
    ),
    once=(
        "my sister's birthday",
        "my father's birthday",
        "a job interview",
        "a visit to the dentist",
        "the village chess final",
        "a wedding in the garden",
        "a school concert",
        "a power cut",
        "a lost dog",
        "a letter from an old friend",
        "planting an apple tree",
        "a trip to the zoo",
        "a flat tyre",
        "the science fair",
    ),
    range=(
        "painting the kitchen",
        "house guests from Norway",
        "building a rowing boat",
        "training for a marathon",
        "a walking tour in the Alps",
        "a course in first aid",
        "a heat wave",
        "harvesting grapes",
    ),
    periodic=(
        "choir practice",
        "a swimming lesson",
        "the book club",
        "cleaning the chimney",
        "a phone call with grandmother",
        "the flea market",
        "a blood donation",
        "the film night",
    ),
)

FLOOR = Family(
    type="Floor",
    unit="floor",
    settings=(
        Setting(
            "Write the floor plan of a tower made of glass and wood",
            "The entrance hall. A long oak desk, plants and soft light welcome every visitor.",
            "The mail room. Steel shelves line the walls and a lift brings parcels up.",
        ),
        Setting(
            "Write the floor plan of an old mill that becomes a house for a whole town",
            "The gate hall. The mill wheel turns behind glass and benches stand around it.",
            "The coat room. Brick walls, iron hooks and a window on the river.",
        ),
        Setting(
            "Write the floor plan of a round tower by the sea",
            "The lobby. Blue tiles run around the wall and the waves can be heard.",
            "The bicycle store. Racks for sixty bicycles and a bench for repairs.",
        ),
        Setting(
            "Write the floor plan of a building for people of all ages",
            "The reception. Low counters, bright colours and a map of the whole house.",
            "The waiting lounge. Armchairs, newspapers and a fish tank in the middle.",
        ),
        Setting(
            "Write the floor plan of a tower in a cold country",
            "The warm hall. Thick carpets, a fireplace and double doors keep the snow out.",
            "The boot room. Heated racks dry wet boots, and tea is always ready.",
        ),
    ),
    once=(
        "flower shop",
        "music school",
        "recording studio",
        "post office",
        "toy museum",
        "radio station",
        "tea room",
        "pottery workshop",
        "language school",
        "aquarium",
        "dental practice",
        "chess club",
        "boxing gym",
        "photo gallery",
    ),
    range=(
        "hotel rooms",
        "law offices",
        "student flats",
        "indoor garden",
        "hospital ward",
        "research laboratories",
        "public library",
        "swimming hall",
    ),
    periodic=(
        "snack bar",
        "laundry room",
        "viewing terrace",
        "meeting hall",
        "children's playroom",
        "prayer room",
        "rooftop greenhouse",
        "juice counter",
    ),
)

MENU = Family(
    type="Menu Week",
    unit="week",
    settings=(
        Setting(
            "Write the weekly menu of a small inn on a mountain pass",
            "Welcome Dinner featuring Barley Soup. Baked trout with leeks and a plum cake. Hot cider to drink.",
            "Hunters' Night featuring Roast Hare. Onion tart, beans and stewed pears. Red wine to drink.",
        ),
        Setting(
            "Write the weekly menu of a canteen in a shipyard",
            "Launch Day featuring Pea Soup. Fried cod with potatoes and rice pudding. Black tea to drink.",
            "Welders' Lunch featuring Beef Stew. Tomato salad, carrots and apple sauce. Milk to drink.",
        ),
        Setting(
            "Write the weekly menu of a family restaurant in an old market hall",
            "Market Day featuring Lentil Salad. Lamb with mint and a lemon tart. Iced tea to drink.",
            "Family Night featuring Baked Aubergine. Garlic bread, cheese and figs. Lemonade to drink.",
        ),
        Setting(
            "Write the weekly menu of a night train's dining car",
            "Border Supper featuring Clear Broth. Trout with mushrooms and cherry cake. Coffee to drink.",
            "Coast Evening featuring Salmon with Dill. Beet salad and vanilla cream. White wine to drink.",
        ),
        Setting(
            "Write the weekly menu of a school kitchen that cooks with children",
            "First School Day featuring Carrot Soup. Rice with tomato sauce and yoghurt. Apple juice to drink.",
            "Sports Day featuring Fish Cakes. Cucumber salad, rice and bananas. Water to drink.",
        ),
    ),
    once=(
        "Lantern Night featuring Steamed Dumplings",
        "Harvest Dinner featuring Pumpkin Pie",
        "Carnival Evening featuring Fried Bananas",
        "Fishermen's Supper featuring Grilled Mackerel",
        "Wedding Lunch featuring Almond Cake",
        "Spring Brunch featuring Nettle Soup",
        "Founders' Day featuring Roast Goose",
        "Desert Night featuring Lamb Couscous",
        "Garden Party featuring Strawberry Tart",
        "Viking Feast featuring Smoked Herring",
        "Sailors' Breakfast featuring Oat Pancakes",
        "Moon Festival featuring Sesame Buns",
        "Opera Night featuring Veal Cutlets",
        "First Snow Supper featuring Cheese Fondue",
    ),
    range=(
        "Asparagus Season featuring Asparagus Risotto",
        "Mussel Weeks featuring Mussels in Wine",
        "Mushroom Month featuring Mushroom Stew",
        "Berry Season featuring Blueberry Pie",
        "Game Season featuring Venison Ragout",
        "Cabbage Weeks featuring Stuffed Cabbage",
        "Citrus Season featuring Orange Salad",
        "Crab Weeks featuring Crab Cakes",
    ),
    periodic=(
        "Noodle Thursday featuring Beef Noodles",
        "Curry Monday featuring Chickpea Curry",
        "Soup Sunday featuring Onion Soup",
        "Pie Friday featuring Chicken Pie",
        "Bean Tuesday featuring Baked Beans",
        "Waffle Saturday featuring Belgian Waffles",
        "Grill Wednesday featuring Pork Ribs",
        "Vegan Day featuring Tofu Skewers",
    ),
)

BLOCK = Family(
    type="Block",
    unit="block",
    settings=(
        Setting(
            "Write the city plan of a new town on a river, four blocks to a row",
            "The main gate. Two stone arches and a row of lime trees open the town.",
            "The bridge head. Steps lead down to the water and boats are tied there.",
        ),
        Setting(
            "Write the city plan of a port town, four blocks to a row",
            "The pier. Cranes, ropes and a white customs house stand along the quay.",
            "The net yard. Wooden frames dry the nets and gulls sit on the roofs.",
        ),
        Setting(
            "Write the city plan of a town in the desert, four blocks to a row",
            "The well square. Palms give shade and clay benches circle the old well.",
            "The caravan yard. High walls, cool arches and room for forty camels.",
        ),
        Setting(
            "Write the city plan of a town in the hills, four blocks to a row",
            "The lower square. A fountain, two cafes and a steep street going up.",
            "The stair garden. Terraces of roses climb the slope between narrow houses.",
        ),
        Setting(
            "Write the city plan of a town built by its students, four blocks to a row",
            "The campus gate. Brick towers, notice boards and a lawn full of bicycles.",
            "The print yard. Small shops copy, bind and sell books until midnight.",
        ),
    ),
    once=(
        "town hall",
        "clock museum",
        "fire station",
        "opera house",
        "skate park",
        "fish market",
        "railway station",
        "observatory",
        "ice rink",
        "brewery",
        "city zoo",
        "football stadium",
        "police station",
        "botanical garden",
    ),
    range=(
        "shopping street",
        "harbour district",
        "university campus",
        "housing estate",
        "industrial zone",
        "city forest",
        "theatre quarter",
        "office park",
    ),
    periodic=(
        "bus stop",
        "newspaper kiosk",
        "drinking fountain",
        "bicycle rental",
        "public toilet",
        "taxi rank",
        "corner bakery",
        "playground",
    ),
)

FAMILIES = (WEEK, FLOOR, MENU, BLOCK)
