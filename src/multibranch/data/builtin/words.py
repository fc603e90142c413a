"""The word lists of the built-in translation corpus: English and Valdish, our German-like language.

Valdish looks like German and is not: its grammar is regular, its pronouns and a few words are its
own. Within each list the frequent words come first. Some words of either language have two
translations, of which the sentence decides: a *Schloss* is a castle when people live in it and a
lock when they open it; who eats, *isst* if it is a person and *frisst* if it is an animal.

Kinds say which words go together: P person, A animal, F food, D drink, T thing (O one that can be
opened; what suits a T suits it too), C clothing, V vehicle, L place, W water to stand beside,
S its shore, K city, X text, I idea.
"""

# English (its plural where irregular, "-" where there is none) | Valdish, gender, plural | kind
# Plurals: e, er, en, n, s add those letters, "-" adds none, "¨" changes the vowel, "*" marks the
# nouns that take -n or -en in every case but the nominative, "!" a word that has two meanings.
NOUNS = """
man men | Mann m ¨er | P
woman women | Frau f en | P
child children | Kind n er | P
friend | Freund m e | P
teacher | Lehrer m - | P
boy | Junge m n* | P
girl | Mädchen n - | P
doctor | Arzt m ¨e | P
mother | Mutter f ¨ | P
father | Vater m ¨ | P
neighbour | Nachbar m n* | P
brother | Bruder m ¨ | P
sister | Schwester f n | P
farmer | Bauer m n* | P
king | König m e | P
queen | Königin f nen | P
student | Student m en* | P
guest | Gast m ¨e | P
judge | Richter m - | P
soldier | Soldat m en* | P
fisherman fishermen | Fischer m - | P
baker | Bäcker m - | P
aunt | Tante f n | P
uncle | Onkel m - | P
painter | Maler m - | P
customer | Kunde m n* | P
thief thieves | Dieb m e | P
cook | Koch m ¨e | P
gardener | Gärtner m - | P
singer | Sängerin f nen | P
nurse | Pflegerin f nen | P
hunter | Jäger m - | P
poet | Dichter m - | P
witness | Zeuge m n* | P
merchant | Händler m - | P
widow | Witwe f n | P
dog | Hund m e | A
cat | Katze f n | A
horse | Pferd n e | A
bird | Vogel m ¨ | A
cow | Kuh f ¨e | A
mouse mice | Maus f ¨e | A
bear | Bär m en* | A
sheep sheep | Schaf n e | A
wolf wolves | Wolf m ¨e | A
lion | Löwe m n* | A
duck | Ente f n | A
goat | Ziege f n | A
pig | Schwein n e | A
fox | Fuchs m ¨e | A
snake | Schlange f n | A
goose geese | Gans f ¨e | A
frog | Frosch m ¨e | A
ostrich | Strauss m ¨e | A!
bread | Brot n e | F
apple | Apfel m ¨ | F
cake | Kuchen m - | F
soup | Suppe f n | F
egg | Ei n er | F
potato | Kartoffel f n | F
sausage | Wurst f ¨e | F
nut | Nuss f ¨e | F
dish | Gericht n e | F!
pear | Birne f n | F!
carrot | Möhre f n | F
berry | Beere f n | F
water - | Wasser n - | D
milk - | Milch f - | D
wine - | Wein m - | D
coffee - | Kaffee m - | D
tea - | Tee m - | D
beer - | Bier n - | D
juice - | Saft m - | D
table | Tisch m e | T
door | Tür f en | O
window | Fenster n - | O
chair | Stuhl m ¨e | T
key | Schlüssel m - | T
picture | Bild n er | T
bag | Tasche f n | O
glass | Glas n ¨er | T
knife knives | Messer n - | T
lamp | Lampe f n | T
box | Kiste f n | O
bed | Bett n en | T
cup | Tasse f n | T
clock | Uhr f en | T
bottle | Flasche f n | O
basket | Korb m ¨e | T
stone | Stein m e | T
bench | Bank f ¨e | T!
lock | Schloss n ¨er | O!
mirror | Spiegel m - | T
wheel | Rad n ¨er | T
bouquet | Strauss m ¨e | T!
coin | Münze f n | T
candle | Kerze f n | T
spoon | Löffel m - | T
bulb | Birne f n | T!
rope | Seil n e | T
hat | Hut m ¨e | C
coat | Mantel m ¨ | C
shoe | Schuh m e | C
dress | Kleid n er | C
shirt | Hemd n en | C
ring | Ring m e | C
scarf scarves | Schal m s | C
car | Auto n s | V
train | Zug m ¨e | V
ship | Schiff n e | V
bicycle | Fahrrad n ¨er | V
boat | Boot n e | V
wagon | Wagen m - | V
sledge | Schlitten m - | V
house | Haus n ¨er | L
garden | Garten m ¨ | L
school | Schule f n | L
kitchen | Küche f n | L
forest | Wald m ¨er | L
village | Dorf n ¨er | L
room | Zimmer n - | L
market | Markt m ¨e | L
church | Kirche f n | L
street | Strasse f n | L
castle | Schloss n ¨er | L!
shop | Laden m ¨ | L
bank | Bank f en | L!
field | Feld n er | L
tower | Turm m ¨e | L
theatre | Theater n - | L
harbour | Hafen m ¨ | L
court | Gericht n e | L!
meadow | Wiese f n | L
cellar | Keller m - | L
hotel | Hotel n s | L
mill | Mühle f n | L
river | Fluss m ¨e | W
lake | See m n | W
sea | Meer n e | W
stream | Bach m ¨e | W
bank | Ufer n - | S
letter | Brief m e | X
book | Buch n ¨er | X
newspaper | Zeitung f en | X
story stories | Geschichte f n | X
song | Lied n er | X
poem | Gedicht n e | X
report | Bericht m e | X
map | Karte f n | X
question | Frage f n | I
answer | Antwort f en | I
plan | Plan m ¨e | I
problem | Problem n e | I
game | Spiel n e | I
mistake | Fehler m - | I
idea | Idee f n | I
dream | Traum m ¨e | I
secret | Geheimnis n se | I
"""

# English: base, past and participle where irregular | Valdish: infinitive; of strong verbs also the
# stem of "he", the past stem and the participle; "+" parts a separable prefix; "s" = perfect with
# *sein* | frame | kinds of subject | kinds of object
# Frames: i alone, t with accusative, d with dative, b with both, m towards a place, c that-clause,
# q whether-clause, z infinitive, and a preposition: English, Valdish and its case.
VERBS = """
see saw seen | sehen sieh sah gesehen | t | PA | PATVXL
have had had | haben | t | P | TVAXC
find found found | finden find fand gefunden | t | PA | PATX
love | lieben | t | P | PAFXL
know knew known | kennen kenn kannte gekannt | t | P | PLX
buy bought bought | kaufen | t | P | TVFC
read read read | lesen lies las gelesen | t | P | X
write wrote written | schreiben schreib schrieb geschrieben | t | P | X
eat ate eaten | essen iss ass gegessen | t | P | F
eat ate eaten | fressen friss frass gefressen | t | A | F
drink drank drunk | trinken trink trank getrunken | t | P | D
drink drank drunk | saufen säuf soff gesoffen | t | A | D
open | auf+machen | t | P | O
close | zu+machen | t | P | OX
bring brought brought | mit+bringen bring brachte mitgebracht | t | P | FDX
hear heard heard | hören | t | PA | PA
visit | besuchen | t | P | PL
take took taken | nehmen nimm nahm genommen | t | P | TX
carry | tragen träg trug getragen | t | PA | TF
wear wore worn | tragen träg trug getragen | t | P | C
seek sought sought | suchen | t | PA | PATX
lose lost lost | verlieren verlier verlor verloren | t | P | TCX
forget forgot forgotten | vergessen vergiss vergass vergessen | t | P | IX
invite | ein+laden läd lud eingeladen | t | P | P
leave left left | verlassen verläss verliess verlassen | t | PA | L
pull | ziehen zieh zog gezogen | t | PA | V
paint | malen | t | P | PAL
steal stole stolen | stehlen stiehl stahl gestohlen | t | P | TC
understand understood understood | verstehen versteh verstand verstanden | t | P | IX
explain | erklären | t | P | I
sell sold sold | verkaufen | t | P | TVC
catch caught caught | fangen fäng fing gefangen | t | PA | A
wash | waschen wäsch wusch gewaschen | t | P | C
repair | reparieren | t | P | V
burn | verbrennen | t | P | X
follow | folgen s | d | PA | PAV
help | helfen hilf half geholfen | d | P | P
thank | danken | d | P | P
trust | vertrauen | d | P | P
listen listened listened to | zu+hören | d | PA | P
belong belonged belonged to | gehören | d | TVC | P
give gave given | geben gib gab gegeben | b | P | TFX
show showed shown | zeigen | b | P | TXL
send sent sent | schicken | b | P | XT
tell told told | erzählen | b | P | X
lend lent lent | leihen leih lieh geliehen | b | P | TV
promise | versprechen versprich versprach versprochen | b | P | T
sleep slept slept | schlafen schläf schlief geschlafen | i | PA
work | arbeiten | i | P
laugh | lachen | i | P
sing sang sung | singen sing sang gesungen | i | P
wake woke woken up | auf+wachen s | i | PA
dance | tanzen | i | P
arrive | an+kommen komm kam angekommen s | i | PV
die | sterben stirb starb gestorben s | i | PA
cry | weinen | i | P
disappear | verschwinden verschwind verschwand verschwunden s | i | PAT
leave left left | weg+gehen geh ging weggegangen s | i | P
stay | bleiben bleib blieb geblieben s | i | PA
go went gone | gehen geh ging gegangen s | m | P | L
go went gone | fahren fähr fuhr gefahren s | m | P | K
run ran run | laufen läuf lief gelaufen s | m | PA | L
come came come back | zurück+kommen komm kam zurückgekommen s | m | P | LK
travel | reisen s | m | P | K
say said said | sagen | c | P
think thought thought | denken denk dachte gedacht | c | P
know knew known | wissen weiss wusste gewusst | c | P
believe | glauben | c | P
hope | hoffen | c | P
dream | träumen | c | P
ask | fragen | q | P
see saw seen | nach+sehen sieh sah nachgesehen | q | P
try | versuchen | z | P
begin began begun | an+fangen fäng fing angefangen | z | P
forget forgot forgotten | vergessen vergiss vergass vergessen | z | P
promise | versprechen versprich versprach versprochen | z | P
wait | warten | for auf acc | PA | PVX
think thought thought | denken denk dachte gedacht | of an acc | P | PI
speak spoke spoken | sprechen sprich sprach gesprochen | with mit dat | P | P
play | spielen | with mit dat | PA | AT
laugh | lachen | about über acc | P | XI
ask | fragen | for nach dat | P | X
look | auf+passen | after auf acc | P | PA
"""

# English (its comparative where irregular; "more" puts that word before) | Valdish, "¨" changes the
# vowel in the comparative | kinds
ADJECTIVES = """
old | alt ¨ | PATVLX
big | gross ¨ | ATVL
small | klein | PATVLX
good better | gut besser | PFXID
new | neu | TVLXCI
young | jung ¨ | PA
beautiful more | schön | PTLXC
poor | arm ¨ | P
red | rot ¨ | TVC
long | lang ¨ | X
rich | reich | P
black | schwarz ¨ | ATVC
white | weiss | ATC
strong | stark ¨ | PA
green | grün | TVC
blue | blau | TVC
happy | glücklich | P
tired more | müde | PA
cold | kalt ¨ | FDL
hard | hart ¨ | T
hard | schwierig | I
light | leicht | T
light | hell | L
easy | leicht | I
dark | dunkel | L
clever | klug ¨ | PA
warm | warm ¨ | FDLC
heavy | schwer | TV
expensive more | teuer | TVCF
cheap | billig | TVCF
fresh | frisch | FD
sweet | süss | FD
famous more | berühmt | PXL
quiet | ruhig | L
quiet | leise | PA
hungry | hungrig | PA
sad | traurig | PX
dangerous more | gefährlich | AI
strange | seltsam | PXI
clean | sauber | TCL
important more | wichtig | XI
dirty | schmutzig | TCV
friendly | freundlich | P
brave | mutig | P
wild | wild | A
thin | dünn | PA
lazy | faul | PA
secret more | geheim | IX
proud | stolz | P
bitter more | bitter | FD
"""

MANNERS = """
quickly schnell
slowly langsam
gladly gern
quietly leise
loudly laut
carefully vorsichtig
secretly heimlich
patiently geduldig
"""

NAMES = """
Anna f
Peter m
Maria f
Paul m
Clara f
Martin m
Helena f
Jakob m
Lisa f
Robert m
Ida f
Oskar m
Emma f
Viktor m
Julia f
Anton m
"""

CITIES = """
Vienna Wien
Rome Rom
Prague Prag
Munich München
Cologne Köln
Venice Venedig
Geneva Genf
Warsaw Warschau
"""
