"""Word lists of the rule judge: what words and phrases stand for one another, and which carry no meaning."""

from __future__ import annotations


def word_set(text: str) -> frozenset[str]:
    """Returns the words of `text` as a set."""
    return frozenset(text.split())


STOP_WORDS = word_set(
    """
    a an the of in on at to for with by from and or as into its it this that these those my our his her their
    your own each is are was were be been across along during like near
    """
)
# Words that say how, not what: a text that has the rest of a description has the thing.
WEAK_WORDS = word_set(
    """
    attend attending join joining participate participating visit visiting explore exploring go going take
    taking part volunteer volunteering play have enjoy discover discovering trip focused guided local large
    small extensive comprehensive big various public major new old specializing like special village assorted
    fresh city week weekly weekend biweekly monthly annual long old private custom random amateur dish dishes
    session sessions event
    """
)

# One family a line: words of one meaning here, the first stands for all. Spelling on both sides of the Atlantic,
# words for relatives, for rooms, shops and trades, and verbs with the nouns that the benchmark's checks use.
_FAMILIES = """
theater theatre playhouse
center centre complex facility hub
area zone district quarter sector neighborhood neighbourhood
harbor harbour port
jewelry jewellery jeweler jeweller goldsmith
tyre tire
defense defence defend
catalog catalogue
program programme
film movie
cinema multiplex
phone telephone
bicycle bike cycling cyclist
photograph photo photography photographer
gym gymnasium
mother mum mom mummy mommy mama mam
father dad daddy papa
wife missus
husband hubby
grandmother grandma granny gran nana
grandfather grandpa granddad grandad
child kid
police policeman policewoman officer cop
toilet restroom washroom lavatory loo wc
apartment flats condo condominium
laboratory lab
law lawyer attorney solicitor barrister legal
dentist dental dentistry
veterinary vet veterinarian
medical doctor physician gp dr
accounting accountant accountancy
architecture architect architectural
investigator detective investigative
saint st
pharmacy drugstore pharmacist apothecary
shop store
market marketplace
football soccer
holiday vacation
class course lesson
school academy
wedding marry married marriage wed
practice rehearsal
rent rental hire
lost missing stray
call rang rung
club group circle society
night evening
party celebration bash
guest visitor
horse horseback
recreation recreational leisure
headquarters hq headquarter
barbecue bbq barbeque
stew ragout
pottery potter ceramic ceramics clay
music musical musician
tech technology technological
kiosk newsstand
roof rooftop
university college
education educational
culture cultural
industry industrial
commerce commercial
residence residential
corporate corporation
bakery baker
festival fest
10th tenth
1st first
2nd second
3rd third
norway norwegian
brazil brazilian
spain spanish
portugal portuguese
georgia georgian
scotland scottish scots
france french
mexico mexican
japan japanese
china chinese
india indian
iceland icelandic
finland finnish
morocco moroccan
alps alpine
egypt egyptian
cambodia cambodian
canada canadian
australia australian
alaska alaskan
italy italian
germany german
greece greek
ireland irish
belgium belgian
sweden swedish
denmark danish
poland polish
africa african
kenya kenyan
"""
WEAK_IN_DIARIES = word_set("job family")
# The last word of an occasion that says nothing new: "the housewarming went on until two" is the housewarming party.
OCCASIONS = word_set("party day ceremony race celebration")
OCCASIONS_ALONE = word_set("wedding housewarming marathon graduation christening baptism")
_IRREGULAR = """
    children:child wives:wife people:person men:man women:woman loaves:loaf knives:knife shelves:shelf gave:give
    given:give met:meet ran:run sang:sing sung:sing wrote:write written:write drove:drive driven:drive swam:swim
    swum:swim rode:ride ridden:ride flew:fly flown:fly built:build taught:teach won:win spoke:speak grew:grow
    grown:grow drew:draw drawn:draw sewn:sew fought:fight taken:take took:take went:go caught:catch buses:bus
    taxis:taxi skis:ski menus:menu movies:movie cookies:cookie smoothies:smoothie brownies:brownie
    potatoes:potato tomatoes:tomato mangoes:mango dove:dive fed:feed held:hold kept:keep sold:sell bought:buy
    told:tell threw:throw tied:tie
"""
IRREGULAR = dict(pair.split(":") for pair in _IRREGULAR.split())
FAMILY = {word: line.split()[0] for line in _FAMILIES.strip().splitlines() for word in line.split()[1:]}
# Families of verbs: whatever their form, they count as the first.
VERBS = """
harvest pick
hike trek
clean sweep swept
practice practise rehearse
rent hire
donate give
drive road
defense defend
call phone
"""
# Phrases of one meaning here, by their stems: what a text may say, and what it is taken for.
PHRASES = """
movie theater > cinema
multi theater cinema > cinema
multi screen cinema > cinema
picture house > cinema
train station > railway station
railroad station > railway station
coffee shop > cafe
coffee house > cafe
coffee bar > cafe
café > cafe
coffeehouse > cafe
power outage > power cut
power failure > power cut
power fail > power cut
electricity fail > power cut
light fail > power cut
blackout > power cut
light go out > power cut
power go out > power cut
electricity go out > power cut
without power > power cut
without electricity > power cut
no electricity > power cut
day care > daycare
child care > daycare
childcare > daycare
creche > daycare
crèche > daycare
day nursery > daycare
puncture > flat tyre
florist > flower shop
shopping center > shopping mall
mall > shopping mall
shopping mall > shopping mall
fitness center > fitness gym
fitness club > fitness gym
health club > fitness gym
research center > research institute
swimming pool > swimming hall
indoor pool > swimming hall
observation deck > viewing terrace
observation terrace > viewing terrace
viewing platform > viewing terrace
viewing deck > viewing terrace
lookout terrace > viewing terrace
taxi stand > taxi rank
cab rank > taxi rank
cab stand > taxi rank
water fountain > drinking fountain
news stand > newspaper kiosk
newsstand > newspaper kiosk
laundromat > laundry room
launderette > laundry room
laundrette > laundry room
laundry > laundry room
laundry room > laundry room
estate agent > real estate agency
realtor > real estate agency
real estate > real estate
residential area > residential
residential block > residential
dining area > dining hall
dining room > dining hall
dining space > dining hall
industrial park > industrial area
industrial estate > industrial area
glass house > greenhouse
glasshouse > greenhouse
tennis court > tennis court
golf course > golf links
of course > naturally
main course > main
rib eye > ribeye
run away > lost
run off > lost
go missing > lost
stray dog > lost dog
miss dog > lost dog
new year > newyear
conference hall > conference room
meeting room > conference room
fire house > fire station
firehouse > fire station
fire department > fire station
movie night > film night
sky park > sky garden
rooftop garden > sky garden
reading group > book club
reading club > book club
book reading group > book club
stargazing > astronomy
phone call > call
house guest > guest
tea house > tea room
teahouse > tea room
tea salon > tea room
state of the art > modern
"""
WHOLE = word_set(
    """
    mother father brother sister daughter grandmother grandfather butter water summer winter dinner letter paper
    theater center counter corner river tower weather member number order quarter shelter computer soccer
    chapter pottery gallery brewery nursery bakery wedding morning evening building ceiling spring string king
    ring wing thing wood hundred bed red seed shed weed need feed deed laser power flower shower easter monday
    tuesday wednesday thursday friday saturday sunday christmas news lens bus gas atlas tennis chess series
    species salad metal hotel festival hospital mall hall ball wall general animal royal level sister dessert
    desert news fitness wellness business address princess process glass class grass mass pass dress press
    access success campus virus cactus circus census bonus octopus chorus walrus asparagus couscous citrus
    hummus party fairy final journal canal medal signal rival trial oval carnival apartment department basement
    pavement document floor door indoor outdoor tailor marketing herring dumpling pudding
    """
)
