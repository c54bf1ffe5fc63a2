"""The most frequent sequences of three letters in the words of languages in Latin script, the most frequent first.

A blank is the start or the end of a word. They were counted in translations of the messages of free software.
"""

from __future__ import annotations

from collections.abc import Mapping

LETTER_TRIGRAMS: Mapping[str, str] = {
    "en": (
        "es ed er ing thng  cotheon  rehe ts  inion male nd ter toent catiors re andnt  pa an st haate se hoall fo shns or herch "
        " ofte st en in is ers fian  de pral  heatice ll  moof ds ow as to  diver beectforly ry ve  dose conres chat  batedcomble"
        "ay  walestin wi no bone reaper a manonsth et  onsta al buile li arive lo whls me ge essoun sp trhow miit  taare pe da sa"
        " suineend weot ere eaackctiny ran exourusenot meks akesteshedayoneaveint pohan neestld  froreart isageainameanyachablred"
        " so lechentsillchatorck istrinut meniesear hi tiparey reclin brhou entra ascan mupla laide usprotha roid prerie unde nce"
        "cat woreneveonthisighgs bernteghtove gr sispestranticeeacmon piworpletesrd  tecarratreeeadundardad erainsmescesickell cl"
        "ar tal plminss ke angortthifilirehas fackert hatsholowder bipenys trimardinollimetimindel itety ompaseeed ra atget crhar"
        " orndsoesititicothithactoutica geeatcalht ngesh ninuntost adllocolee lleom  cugraoldpac ifif elechistoalilatenc kende ga"
        "sermatded joookassmbeinitchloc itses opsticreps utedenetsarsannkinnedecinalweeie ssitenhenttect witorkturomminaome giust"
        "finacentacou tw feracapp flwerery vaastinc japor scecodisgesete putaberrnti ap acsechinllsmorsiour pecoweownhesllylarsed"
    ),
    "de": (
        "en er ichschungeintenchete verndeier bedergensteertng  auden de veteres  eiereionngeendzeibenreners an dacht geateaustio"
        "eiceitrt ssenen undat diellntehench entmenon die ininelen er we zuie  reberrtereillestale istrunigeht abe kotei siin ati"
        "andlte vo stne erurdehersenwerebealtindnd  fege ernet  ze scaufang se pagebit geswenitehrest eselictelerwiscde chlnic ni"
        "ehlchrfehensforaktsiekti winstre voring prngsseriesbeihe amelisenese nerachgabundem esterztigonedesrzeweihalegechn enmit"
        "ei  ab mehleuntetzrwemmenamtieübe aleil soall legernn proolltze arerdeigartselkonescorttzt tausglt  übnisspeete sp akgt "
        "rstassel fenkomtetkeiessls ileannenn nasetll ien ke maleiitiler miechrtiüssergtte fütra umintänderariekenonsmatts ormper"
        " bi cofun nuutzum rbeus mer foodenutrn nt fererbinilieomm lialechierhücktorkan haim rscketrücucheis karmainsduntanerf is"
        "enuziebarbesdas obastrecnktstrranas geglüsageedeührlauarbhlüunkefefühektdarnntzt alitiv neitssti syhnifürür gelrgechabe "
        "anzusslunat areittzenresordig dettypnze tetemtasrd ckeme erl opzertatur ammss  grelelestesparkt htesgeeriuelnieeldwirrs "
        "ltiwarchskatratgef hiervspavontunuf tabrchsicisiignck hl eibifinnektubinzuslge imric exikaemeseial hrifolielsiozu kte tr"
    ),
    "fr": (
        "es ioner on tioent cont le re  dede  inatiur quemen pa rete  déeur lene ns conlesresantue ctiourtreble priquficée lists "
        " poonneme su en lacheonsnte un récomireteressrs ect noageparge ont mace desla  se auifillese utiieristit  exées li mo tr"
        " soaliichacttililiestchaés versioignssi chet cat fiise dotenchiautstatra dinnepasserus as indortnde peintica l propostes"
        "nce d me ivestr esale utersvalteuiblpourandanansand fo siut ureablté ompis itisseun omminsir tan imrre acairateez  ar qu"
        "du  duen ancntiiterentte ceini caperidesupst rtimpotivntr lo vaporendursuneratell opcesréentstifcorertie  te ta neencill"
        "tatdéfmanisanomrecappmatienettmin apériffi écpréndinsthie daimprai à finux erm venéeuppfor avouthe ineitéaceéreel  altou"
        "al modulepresonnnéat dif sa afara syouvpriaff ouargérantaormtai viuveiséuessib étdonmploir plpérrerousallêtrassonderrais"
        "éfi barésèretie clplicouheroriturécisatar souligattorrrou meve  to stssariegneinc n oitplactesanempau tabstenesremespin "
        "uteleundaec  spodedretiq an séponlonanginammenitécuférjouextquiaitdispeuls  et faave miuto attal êtartmisseurmilanceross"
        "ncormalitlic grcridensur bioncueltroréptemétadépptionfcalauxspo crémereglec obarr volatorsstilidexpctuailgrasi ppoiallem"
    ),
    "es": (
        " deos  codo es ar entón ado reiónas  esde cióconnte in seicaacite to est enda el iontraor ra  pa prciola res nocom lamen"
        "er adase no en  elal  caficparta staperoneterrecstr undesieneranes diquena ndodosistntoespidarad siaranciro carpro puten"
        "idoandifiblealiccintrio tarciainatosdenrio alencporectontact acpreicicad ex poesciza arlo  lo maero sontaonalestadspeene"
        "ompca edere dorantivoon tivliz teir troura mole torintarcabl fimitlasia rar us sumin handilosverranma arilicue rea queci"
        "tes opan stelidermdel truedregdascesoriun  peserraceta meerermipuedaddicualcacinirmavo  ta futicincdir tiecurtanalbrenti"
        " veortecc vamierchunaforatopecctoposendce tancticri lilecambelequicamsiómbiceraleso iliscrdebchectuivatabfinchiitanadire"
        "eceesiad ombusaormicohivnar anaceniclarmpoemaore cuindnerdefeteamimancif foerrimimbrargextins faempigurasnstclatalea til"
        "itetuastáfersol ramo  au a ne ert apegiebenompo ierame danea baiblmererisar numplredolo saco ncozarribimpcreren obciders"
        " biefidifherenadisostamatasjo scatiearáallesaopepliutamasonssti imonfllapriocaple crartediatiiosord leasecordatrepgening"
        " ad y be riaine closimodcanrrait calrosrdendenidálisitzadunclisegu miuetválsalultltago emetreva turialtipetocolsecmprtem"
    ),
    "it": (
        "re to ion coentne zio inle oneti  dete ta  dinteareconatomen riicastaaziellestla  sedi ess pratipos es nono ilentiperter"
        "del rebilni er  un ston lo ereficettatacomra alili tratatssillaonistrifi al so fiverina caio ntoameallna ca ostten suche"
        "chiist peatt paprenonmpoore modo rat da ne pozza imcatso nditor maro izzil ontse  queriini sisio la trggiibiaggcar ilimp"
        "ri  spun el trosticorinterattottesegandricitaia  meariproilialeind scll steorihe onoserossttiireminfinpariziurama ito ch"
        "ndollostomodpor levalresrimza  viololizeseme omeassate varisfor teaccine è ssomanualfil liranlleona us vecolsi ntaimerma"
        "spe nuglinatqueortco po  talitomppridiftivich folicusace dicin antelessevissa abitic agneltesaraenzsib puodive reasening"
        " l tarnesene arecissaspo e datcri op elmatrtagiolocicoappsciondndemereguerrntrtà tit atermda  loorrttascrciftrireceroden"
        "una apsonnitutoancppodisiatoraormiviendumenzinsiottededefima i naltamria anpecersdernarritdirrioitànomplici ienicetemsol"
        "orniscefi piincturrigiveferinsutetaltreonsnselinart geeziispult crcesutirsiquaupprticiavo creioraltlorcam faemesar fuici"
        "dalraztabsupoll utletnzauesscoei it guigge ti orrreut ertervmetullrro auanoregideva de sulnum ba a hiaisugraonfry nerpon"
    ),
    "pt": (
        "os ão do  de coar adoas ent rees çãode da nte in se este conmenicato ada para dosor  prreser comtraaçãem ta terficsta po"
        "estparrad ca exontdesara li tendoido no dintoal istquero  foidaespverma preizaõesia  enrio doessand ma mo meeratarntafor"
        "el tad o io carposdasvel quntr su alciaifiper a ame fiis strtivlizproir  pe daçõe ap uminauraecipor arescspecaddaddorivo"
        "alise íveum recinica intatitesserriasãosteionquinãoou  nãomp treir atciona onaloc ustemmantenfinnciadeáriant famo iroche"
        "etaitano vo ere imiliendomeual ne sialhmpolo la re licnhaimpndetos so taalttro emcorrmaefi loso defcesho torha  ac e  ve"
        "remlinocaitoue  ouortcrilhoormlid vaiciraróriaisermtuaumainhtil asminponpriencore opco everquelaele baactivaeceusaosseri"
        "pecoriquaranarqzadcaçme açõrosincam heisenicoesedicoradirrmive ichemoferode torreensderscrmituivsívretticindpo tamnalnti"
        "ext é ssonomageramemaraçlhaecureaerrtalire obrtapactriatuinsiçãostpliorrlissti anncotóralotasenhnarnadonered sassíspondi"
        "itedenvalrocdifassersgracalêncregrimume vigemfal aucursegcifeximodmosiosom edi cronfomaulaegumernecdis gr le aoamaniclar"
        "etoacoertrraime ge naempva ltepodáveltaturdevimaoteço refutiimichaarrmpaatatid utmasrasao repectareonsnstenasuberompruto"
    ),
    "nl": (
        "en  gede verer ing besta veet ndeandan  ineretiedenaarsch dekengente eertenie estderng ter oprensterdeegengetanaanchtbes"
        "oorerdeen heersvennd  vouit to te va onatieve stvanmenekegelgevel eld rerd es ord coentensondlenlijvoenie al aalletoe ee"
        "ele ui maruigebtekst ardelivoole  paach ni mehet waendor ar indwaa diis naaconangebrnt dignstoer wo isbruontuikietworkt "
        "ijk mo pr doreeertge in igehteproat geschilin wels eelerkal gegijdnenntepenovens oetginsentelre  na af en bittetalwijit "
        " sccheop kkeall lectierwteewerregaatngs dats iteeidakeescld  kolee oftaamet arrt eri li widatam kerrijistof geeoegrinies"
        "ervron omlaaijnodesiecompakaledt tijortrteke vol ziht delaalkelom ect hoerggrobelellcatkaneteetsezeoneiscrei la ovchaett"
        "kopgra kamaaalsppeakk sydaagetndaedeket tastrdieerbinstrors oudsserecicaon optheraamdraepaig amedinres zoroossiike seeks"
        "abeitvaakchrtvooutmmeech acramrwiintoepslumapnvooon grperbij mildirstmerzijhei tintaappracienus jdentindinnerdtrgeemeich"
        "ch brejk ij autptitse breinijzassatsiefeemid pasap ndsfouweegedeniger aucodideageran fone he  slareeneletogrft ineef arc"
        "evoongopdiktumeber exhiemeeomp nonumhanmatsysystormjn mmauntmoejkeplarch piactartutebrosin so viseltgeommleuhee haminade"
    ),
    "pl": (
        "nieie  poani pr wywania niaowach  zaenine rzeprzegogo sta niychna ny  na doów ej  koanewieać ścianypodrzypisczyiennycawi"
        " od st jeowenegczezen moywaostpowierym em czndziki znakonamikowprojącowyuży roje kieji czaniklikciemi miezy owiraw pa uż"
        " widan czzonikaalnonyacjentpli li us pl ob inpraączłąccjioneestka tu zanstrmenodaeratawku roziczty ci la zmibierow opacz"
        "ach renejmożdownymietion skyć st szetanzytystają teran mawaćian znszykatorz zmno gra klić wymtowmiaistiu eślustść za wy "
        "trz sptorbra okącezasoścwa  wsoczze zieiejwejstęujealeapizapfornięra lic w iniiem kajesczosow wedniwarnowanaącytępkrelne"
        "ująaloielkomcjawe nactalięc ty syość sejścpozramtwonicteronakówogrisastewnilnyskaniuuniworwegce su wia trdo azwoleokrnaz"
        "artpiezeręciwykymatówedneksnalwypreś taeroorm siastontcho zeiowszaja akiakoną  miświokaaktfikstologyczlonrtoby obiiwaano"
        "łowrmaługtycyfień tkoali błzesownwidzekrów z ersracją li ciazys jaloknośktu bi i ko wysomionoieżktó damac piumeies arię "
        "ożnpoluj opr al szło niooniżnaładetlymirogwyśznewycodppakżytcy ek le temskipaswszypijedzni noznyik arzta tniasoozwzostór"
        " zoiedyśw zwdomerzzakowosię waycilnikońończwizyćtywtrotariekjakuczak  akry eszstytek byodcresuchlan desan cocenzyczawekt"
    ),
    "tr": (
        "erilarlanleren in arıama dean anıini bi yair ileer  kaınıasıara ollamlemlen geılaemeak  ba kuın ndaesikle sarinalailiste"
        "yorndeeğida lla dodeğbirma ri or lir veetiullar ni indde  tabiliritirkulnı rınalıek rı denşlele  beır ayısinsi sı eli se"
        " arekldırere içındrilme enesıneniele di kolmatır göki ne  alnınbelteraya paistsyaniniçidososy soştiişlmas haine yeya ilm"
        "lı  ayli rlermadanrakolaleşyazmes işverırırmeiyoanaulauru gila adığişkeniği bumakik başdirandçinrlaunuiziemimlelleellisi"
        "dı na rıliz likeditanılıimlncetar ad dalmesay çamadyardizçer sı et ilgererlnla kieceoluyapatıği  sieçeçık önkarığınılson"
        "kla dümel teseçış ılmınağin süabirulatayalikldi manğerirmre parmlandıeğeiş mekun onukteçalırm ek uyedeyen anketniztemmay"
        "eki liakimişacaeyelisğınüzemallışrekazı re çıeyiendgeçolm isnlemışldı bomi arl yoamıısııyondidekeşt inştıal girıcıkayağı"
        "zinirldilnımirtaltişienmtilturaktyer meel meysürgörim az iştürü heanmtikve apıırase kalcak nenumet ımlnmaluşiçekildurmin"
        "uluyanağltleklisatimiirdanlnızgelbağdaknmerumdüz tüadayı cı letye gösöstuştştumiynamsiz güışttekuğuce aşırasrkeit nu maz"
        "mamte hat keressa rtitamğlamed matmeeksekt dutkiyi tladığralkoncekız mutrdioruşla tuetkkomliğetlta ildlık eşundrsiaşlake"
    ),
    "sv": (
        "en er ingera interar et ninra de ionng ndeför st fötio anandstata  konte deverändste rerinaderadas lererigenillan  tikti"
        "fil skvänll ndate on inttt tilngsentngeataellserati enlledenör der me utistnstnerad na datnväonestrskaanvat tanngaom men"
        " av fikomaretalvargararala mmaattstäre  prratren viallkon se kaga matmeduppär ligekters ta va ma pallada ka rarundällcke"
        "yckttainddetnt  omten lätorortnammaniledarpro belogakttivts eckensinstar arns katkanett atforangparrt onsntaskramndel so"
        " väant sarerst raslutelaiveranperart upkriärdes lisor tatängesslagommnd mertetrnainntniig rde flätt i gerbar migra teslu"
        "ormreg påkt endisktabchemme syresel arkkalgt lt ansed  trsom fr haern exaggrivnenndrtigläg podes alal igttäl lick lenlat"
        "rmaketkenöveate ärvärav erestoränsamch  biollge  övmintyplanreddrafinramker divissenmn il itipå  ununknktkniier daposalo"
        " ocsät sitemiga gr ranna änetsfråerv loammfunhålsa  sp gesökutabelänsont banne veåll el nyletlti etfeliv ochapprsttraite"
        " sl måckavid fetag åtmetikadniittifidigiltopedexgishanabeträsekrefid egiextardordvalut fertrytidetelinggastisiorteefiin "
        "omptadbastruertörstreiniägeåteknaasthetflaretrd kodavs opllsturrolloktis fo fuarnise sä toatsinf nonatnfo narkiplakargre"
    ),
    "da": (
        "er en et ingerendeterde es forder de inre tilind fong  tilleverstekkete stalerand st koke gerngegenenttteiveelsne nin sk"
        "retlseendededen mefil udligmennteionrinil se ge mme afunderidel reers fitioskr vilined  enatitalor renang brdetbruikkkri"
        "resle rug opkonstr pr ik anvær maigekom beom al serellrerkervisat erntetata veeksst  unngson venens erkalprosk  li telde"
        "skeskaisk kailenerstiagedatred vænavistmerrneoveilletttanugegivdreallavnlemtrenne sedigel ktilenog ig  sonstmedaf ontnd "
        " pa si geriv omoneommmansesortsenndt atgt an est ta hvkantat i matammastrt idevaldeshed sykatppe frndssomtivegntekken al"
        " bl sandrtegngi påormrdiladigttengraeletas elns eli ovoldakt arve  fesætrel miførdstemeinjnjeramiftertdsktemarklt nt rst"
        " fl admin ogkstloglet etøregleejlærdsseilsvettidfejdt  loenestønen sl diintlag trmelis eltjerkunnktntatrorogholpertorunk"
        "appmetrteængsnipe orendlmma læ ekbleoderkeardgetessndarvegeltni nelutntrrol hermapå cerakkvnesluvedteslisonsiv eskate ha"
        "paktagektndonetfindarsekvn ogrsamalelæsrif fuyldærkbesketlstype nø polokar fraifi varskompalgnøgbliskigesære e øgl daid "
        " bi notypænd føordftelge mo kuervme hviise namodvar spafsuds faennsøgsidatuvesighalo lainsengaltlli nutarrretedånddteart"
    ),
    "nb": (
        "er en et ingterte forkkees ereng re ver st folerstettede  detil tine  in me koke oppett skentngelleil tt sta veertmenom "
        "alland en utfilellnnerinikkndeendor  opsergen brrteinnsjorenjonlinrukbruntederene avdenmmeresker virerig rt ten filenvis"
        "skrnertalkom ma prdet ikge mer re lieks sidat sose ligll gerkrile ed  sestratatet vangs teistproppekaleri er leldeonesom"
        "on engtreappvalelserskelalgfør etlsejenst  be ka paukeska påommdreal ens i avndiguttnavortedeninignmanis egnkondeleleteg"
        "injnenretel senovevarive lasetang hvesskansesar ormndr sandariv taav at lt ileog ta på vennje og anise slmedjer å ernkst"
        "lag feerkillident gjenstasjsse aleilmelare miind he nønøkfeiartsig tomapittatu elan attund arvn mettatlgeram un om ovest"
        "mmalikontassennelt gjpe ldindostiatermaastlastanarg ektor dioldigelut ha frfikntaøkklishetsamode baøre blrdiifiammredgra"
        "netles klaktminisksluyttull dutesholerdkk tekrtijørperord nekesus kt år ildiv umearketeesiketelimattid fuskegn velgetard"
        "greoreblitivunnrogogrtarsiseld naøriikaklaiergnadu rkehviiftktilarturbelppfevestøblemodlet føantalesniakk spfrakattin kj"
        "rek faabepaksk pfølogtemdarrd din mådesemeagenn  daør fin flrnepresorid lg llo ponesbarvedegglattaslgtrkipesdietel syrst"
    ),
    "fi": (
        "en istta in ett vastaan le lleon tettta ko käisesa ittssaoitoststoelltä inetaastenenaa äyteentie tattuttä silismenstimis"
        "senllila käy tillaksiallite muentaan olia dostääalisi än ied vi li tuedotteoletu lintelilltus paavaja ainkse saimeäänää "
        "valteeimiest kurit eimerennttiollyttstä jotaviviitukisei us setutt lulitikkoismääitalä essetuuks täekset sä toiinteri la"
        " al kaustäär syssäerk su pi arntaais nävaikirsoiminirj asnimienjoikästi uutvoiaserekisäsesat isilläteriss meden kitil to"
        " onsisattiä  vätiijenaiktonala sestuataaus potuläriila haosona nne vo enrkioa lukekikomtämäsk rekkiamiika loskynnielmkoh"
        "tinnettampäitaiiinmuu rito htettykontunitsvälastetauotvarsiaäli jako matvirarvktiperrkklueakeiiv yhumearkkooaluautvatäis"
        "palmuova assitätuknisit un nti tyoteaattenseluvaomeoli puvaa mäseksuo nisiikailaisee jälevuiste eisntorjokunri ueteelrja"
        "araori kervoykstsisym maytetiouloviekanlos te ohiirojaot iitdelty älltävrhekkotoaukuamauorpaiaksirhkitteiliityymuiopekuv"
        "rivrintojämäsintarkkeut hdesimoimoi tasetäka  e uriooninklmaossran ossuuäväua tisoodttö misitvii ylpoimbookoottana päymb"
        "bolnnaeraotaudekaainamaamanyötlaaijoletnttohjsijatikeeuolmetverdishjeomi notys instyppäkursyökokojesaaulkmalsalvanros mo"
    ),
    "cs": (
        "ní  po ne př provach  vyproné ová naje staeníat  zavánho převatou ný  st jeánírovce na ost sesouit ujekonky  soem  do od"
        "ých koovéznací  obte ny podteléhoná poupřito no terpříužiový návaním stulovstrastku zen kl výně ouž veentatebramenrazru "
        " chtu  rotavlednovoub spka tupobrborze tov znubopra invé ložstien nouslokovkazvol reechnačpisresdnoodníchnutdatle zovké "
        "hodvypestnebícípovovnchyek icknímli řentí vý ednmu se odpci aceředposmi práhybacínam baran taty  záneplendovlik daaný pa"
        "orukteanépor syta elndnííholat ma liém st vá nýclníenésleti enojíc sllo nosujíístměnro tordposte mopolovo aktrokláčen me"
        "alovenvníým  a la roz v jed zp kt jažit te deveror álnjí enýistaktvesbalravrac zo uživaoleotože ověší atiživazetrarávlíč"
        "zobřádřepchotní tooročasán enaitenakbylakoolonasnéhatnazoaveolifor skjak ar hoánozadříknitet ěnítabávespoalektuvýclávnu "
        "isk alplavytebolouněntivormíkaer  cenotníh nopočikonen adpliontpoj řáupn opedeínaojeají aptalika byrojrosdreženečnry ins"
        "ataadrstonásytveze zmvéhvu tenpozčísde nstko  zdklíbo žadávaonč kaému ditatačímísányut sahtardenmezužípokokuobspínčít s "
        "ak licysttřeby extvac buamecovlu uststnobnnémtomba epíjentém vleleče lzehlealítiszí  fotvockéskunelaliníc lodu ifizměode"
    ),
    "sk": (
        " pr poie ované  neniený prevan naje ia  vych ho ať ov eni zaiť om anirovmenstaprite ná éhokonna ost sú spne  jeujetor ko"
        " doky  zo akáciznaýchpououžanéstuvaťanýpodej niaka  od stsúbbor obúbo reenýto razobrent inní brastr náenéou tuptavre ast"
        "stiverteľpríkovpro sanéh výpratoviadložrescieadaredest ro chor ku lov zása vollendenzov znovnáva ma mony olomi atelo ožn"
        "kto veužikazoroáln ni todandnonepnutpráakoovenamiesba  menas ho al vozobhod syajúciasprovýistnýcrieodn patomick sknov te"
        "iteaníok hybnenti štaslooznchy v nostlalad ktjúcovériaotoeníaleodpmiečasužípovkombolnačru pollačívaátotrepornakakt vikla"
        "aložívtaným nejamivatím rávmu ikámožposva íkačenebotvoforvenrenčítravdovtrooredpoednžitíta číorm sezadaze bajú vý ovo ok"
        " čirozliksleko stnextenátu oru bujednomupntiepotavevorla ak ujúolekci zvpozce  dinot ridiari zen e písrojledči iu azoer "
        "talde epo a  čarmára iaclnetenenesaholiby no sť  vsvstači opehota  slalivypcovanáatiam ty terže balríkadrobsvoľ adnú  zm"
        "vacoch klpočadnnímram bo bydarli eľn urakánedľa  mi armetry  noamenemktunázle ké hľaľadpisdresto ov zdontokodajkácrannu "
        " dedro exorižnéveľčís so štstetexdos tanýmžiaedemovurčnšttém tlbsalebbo výsciu trponlokvé alílíkvéhpliprvzoraderázojerep"
    ),
    "hr": (
        " prje  poijeti anjna ja ne  za konjeni  nastaka iraranno om ostpropre ne izcijprijenma ju  storirijatinjaitivanke ija do"
        "jedika ratav jemenva te stidatta  mored dara  odavaog znalje se reacinu treistimali posedn isim ih komki razatonosmogza "
        "liktekodaovaent saogu niivaenipisani vrpodrisratkorakoenjko ljaenoren trenase anootemjeku dnoguć intor su ovan vi nogski"
        "emedanrem dinakenetotnijlju de spniclazće prastoavlvljji janrettanora opstrkojinaak ama obrav ka tiakaojeda nikadanom li"
        " metraenueliilireb slerapotjelovi u avi akla ve pokčit maaliinirikzadnim bipon siane briciazipozemo imisp ve svgrajerizv"
        " arnutst ijuvršimeajunačananju grkoviteicaataslonovetausprojsa jevnemnihestonetipemame  upaj  toareoj oznnavrek znkaz uk"
        "vjealnazndnitalisndrž i sprvoritabrouće tevez lokonstudiredaodr ta s sniipkeljoveikoritektokaičksu or  usličen ri isarad"
        "to ca ce  osokrojaulakrearaediirekljjučadrer onatakaljčinoreompujevarodizor ališeoliznipov pagreovorajci tivdijverojimij"
        "otrtervnoumepormorresnarđenle edeopiazaromspiustao tupspoavnržaeciavereš ilše dodvnivrizivkacnteičiogrmatređineekakra kr"
        "alatireksnaltomtitktotatebatri vi nodreovnpciuklzanlijopuivnjesže speozolo ajestveškevaiceosl apeđusadon jemlok miopcakt"
    ),
    "ro": (
        "arete re  dele ea ul reată  coent inateui  înat  se rede eleluior uluile prză ere nurul fiază di acațintreazntetaticamen"
        "iuntorlor cacă ie terii conficestiststeatăificarstaint peier suoriireliztulect exei izari alicom ma po lifiștruoar alne "
        "numili un nestrțiu stuneră uritra cutarta actini areririlia precesți prorec spchebiltrenealoccțitiltivliccatări daatose "
        "ratite me paiciutiru nt lă umeara fo mouni trvalrespri siperacesă ce ică utastzatverine opaleimepennu  a tural it ștedes"
        "la imp taar  vaeci eser în eloina afișispe laorușierarteaalo imimbminporriiluliloitaocainsionpli appectelcitîncnă ntaona"
        " ceeraca ra cticifrmaivemulție timplfor te noparchiun ompormin fer sc verelnalecu adnd ităinddinrimțiietaemematițieru și"
        "trilin săextorteteermabisectaleas saontși modersme cte auticcrermiafițiaut iiloneicediralălim fu o  loînttabediândțindat"
        "ritesautecriau esccațimistindeandloariehet ni ciptamar bacurultmărputtoamitbuisupcu pțieluacăst oni putenarăna rancerero"
        "eptatisiueșt do eluraimareg munecscrstăcul ludaclisoatțiomannstibioloincecetifecț anntiselndacalner minicivaccesardisant"
        " atoduuncet ctacărsimtimideschricopțualniitem uraut chesi crtip oblemginrebni utoiti asreznilaccebuutatasieinat genitnți"
    ),
    "hu": (
        " me szeleek megtás el kilenen  a tt  beet aszása leak tésjel hatelsa egyhoználszesítés  fefelcsook an men azhathas kö eg"
        "éseás  al neentfájájllt sznja araes  kaaz ítáettletssznekterse ra znánakáltsztállal zetoz  csgy lítért kezésem válottat "
        "ítétár fáatóor korelylásint érel zásene vaendtó nt ásáeze fore ez lletalhetsi ásoni álaesz ké tegyeforsolva etelyeti  hi"
        "szaagységszáere re pa jeik renkezsor ho mion tetelőkapényzerlisrásnem adllíközncs vákeratálhaala tanetbanos helmezsokpar"
        "etőaktapc biminésépcshezkatbenrülranlesetirak álatoezélatezőlemzámtotát  healm maell töilllaptattő  somásleger tumégegje"
        "emeelmst öveontáraaláancesíerüyezve szilmeolóvalságányeltolátaregjásinyortérteeléartlmatékdatkép vi pris  tá liössosíeg "
        "bilók kénző áromazól ndeozá léadaészálóléslas ésindlvart nev kozolormkar es ösus eálmaggadntyírágeskallta akpereveegaéne"
        "elhtyűszoéntrmáazoissitetreetévénréslakolvhibketnte vépronostescióktetenánaló  nécímomafejkönejeáhokonbb  arli beáot zon"
        "nítnyeítóeke átdszsakvégvercsa máéremódistét melkuscs jl ndsresvelení intozésirehta vagteképeoly cítja ezüleönynyvvet mó"
        "ba thalétszíadáül ameese e vis enálifol gyortltoolg olonotörélyelsvasnévtokyvtvtákülha  idombegéokaozzakoétetérlla nydel"
    ),
    "ca": (
        "es  de coent esió ar  rent at ció inestqueda men node ts aci caicacon se eldesperta er  pral el stara ioncomls en la tra"
        " pe enns or re resadaonsant la fi ha unna lit diia eixect potertatstrespciopro ex ma siles altreeu onars no intnciés era"
        "prente trtor quina acficist pa moitaix itzcteifiomp llir  l caront a  surecspeels d  s ca ersactescbletzadelameetaaquten"
        "ntrntaadetesdor teorinomha idafitis txexerssiparualri itxaliradiliicicadempte atsan licuesun tar arariciaos ostcridensió"
        "le cciit fornti le amllaadotroran foriaut et urantsessalsmpl sotanmprsegallma scrcacposeguablverdre mearàcanormuet obpec"
        "minseniesortstimetstenalus breincecicatue gutermnatnesnarrmafer aplletinom talll ordssaiu rreerrtic orreaple mifinemeign"
        "serreg emèncnviret opracegitua vetil tomatpridirdifideorsassineeleuna iminisa pli i mos crse rarctu éstgealtara fainsext"
        "ecucaperemanodeambimige  ta baindcrerepsi locnicctisigimeporstàuntquaiqurti anlidpaqatgcoretetem aqpla useri gecalemaarr"
        "guiot lorrrova efeiguoneciflatllimis vaviseccocarimert fuingtivviaonfrattabureene dooraanvrà ciedisvalaccbilctomb ivarta"
        " clàlileccolireellcesimpmerndeic  adissclaomemparefcamati lolartrigramarlegst lispcilem audic blncandietisupsitletvàlsub"
    ),
    "id": (
        "an kan me dimen peangng si eng se daikaah ter be teberperasiak  keat ngaalapenataganaka banyaar  in tikasingal er araya "
        " ta reri  koungarimemran pada ngkas taneraapaidanggdaklanntuentukaelaeriadaamaalitidndayanuk tukntambaemb maai hanlamrka"
        " un de sa yaandis seb hama isiam patgkaunt siit eksik end ladalbartiklahenael ilaerkiniliktakgununaus dardianambah biili"
        "tar st suasadittaskonint kapakin sik prindbua jaatiamberlta arunakon sandipmatstapanmasdiska ndeggaaha buet str anhkatam"
        "dapantrinenytu pempilkom ak poni lihuan apeluetati atudanbolsettiferstkaerbbanden atema adertist arlkaanantiihaor  leebu"
        "lua coianbelol manetiaktmpana uatitasteiteketbagesitemhar opnanemuampuarkunuraebalaidir nadi en keltinodeesa caipeeretor"
        " al lodikks aanukura risisaten gaselksiorikatagaularekbunau ih ensgalanyaks piut aikrakpronkale tauenundirikla pa dibde "
        "nsibutmboolemerke lisilkasuokajanap rusfikpadpre noimaifiabaggusis vaid sukngilokvererusimsal toirelinsa encayaerjempete"
        "es ek  moeleseslehntetelrasjal spil enelakif urursimpikarerpcarmbuacarenkahpesigulatktiagimodia um emiompakurmakalediuba"
        "emeur balektresontekasarnstuahte  muahkli valdek walidbilspetektrialurna turegainrapong liatkopeitudatbatgi  endignaltah"
    ),
    "vi": (
        "ng  th chnh  tr kh nh phông tiên hôn gi ngch khôác  cáin ập hi  đư qucácần ối ục  hiển tinết chuượcới ay ợc  và cócó tha"
        "ho ột iếnỗi ại tậpđượ tậ litiế vi làkhiùng địất  biình củcủaủa haythểhể iênanh điào ongao  ho lệhiệ sốra  bảsố  cochothư"
        "ện  độhiểiện nà sachỉ mộangặc ến íchmột kiiển haải ron tạầu troếu ều  tưbảnan iệuệu ạn ạngịnhiềuài ộngđịnhỉ mụcời  ra mụ"
        "hư  đầản chiái ungiểuểu là ưa ày  lỗlỗi đãđã ọn nhậây  têtênượnáchống dù bộhiếợngdùnánhbộ ươnơngkhoếngđầu đốườnờngchọhọn"
        " cả đểđể hị thi cầvà ật  đặvàoướcớc hàn vớvới đaon ai gia kếấu  cachưđốiảngnàyhuy cấàn ọc  từức liệắt êu ghiuyểyển ký đổ"
        " tựconký úc thịòngviệquaàm ân au  di retrưền kếttrìlệnệnheo  xu gh hợhợpợp ặp  lạànhổi ực  sửtự phả hà bịbị tra mi màóa "
        "kiểrìnặt  lưảnhát am từ  cuphầhầniếtđổi bỏbỏ  e hảiit ấy thứthe batượrộn dụận chứ inơn  bạlại toáo  dò tùtùyùy heođặtẫn "
        "dạnhiềệt hế cầnnhihưaửa ép  dạệc hân gặgặpấp thô maiệc tìer ăngiếule uy ạo iểmểm phíếp ăn tiêbạn câquy logiá tádònđộ  pa"
        "dụnụngính nếhanđanoặcằnglệ hiêngưnếutạo nê tí sánguthuúng góthựhựcđiềgitạm  đọđọcua ộc nhưưu ói hệ làmẩn iêu dữdữ hímím "
        "trịrị  dađộnchếsauiao đó lầlầnphiồngêm  mặ đếtháck héphúcán tìmìm hạyạy giảuộctrêrênhứcứng cônên hệiá thờ nógóiộn hánoại"
    ),
}  # fmt: skip
"""For each language 400 sequences, one after the other. Languages that no setting names are there to be told from the others."""
