package scenario

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"weft"
	"weft/lab/vnet"
)

// equal compares scenarios, but not on which lines things stood.
var equal = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.IgnoreFields(Lan{}, "Line"), cmpopts.IgnoreFields(Command{}, "Line"), cmpopts.IgnoreFields(Policy{}, "Line"),
	cmpopts.IgnoreFields(Router{}, "Line"), cmpopts.IgnoreFields(Host{}, "Line"), cmpopts.IgnoreFields(Flow{}, "Line"),
	cmpopts.IgnoreFields(Event{}, "Line"), cmpopts.IgnoreFields(Probe{}, "Line"), cmpopts.IgnoreFields(Expectation{}, "Line"),
	cmpopts.EquateEmpty(),
}

func TestAScenarioIsReadAsItIsMeant(t *testing.T) {
	s, err := Parse("all", []byte(`# every word there is
about   One line,   # and this is part of it
about and another.
limit 2m

host ann on=flat ipv6=no delay=1ms   # a router may come later
router flat on=home nat=symmetric refresh=both late=50ms spoils=yes
router home nat=EIM-APDF ports=sequential/-2 hairpin=yes pool=4 pooling=arbitrary timeout=120s on=internet delay=5ms jitter=1ms loss=2.5% reorder=0.1% rate=10mbit queue=64KB ipv6=yes mappings=1000 per-host=100
router office on=internet kernel=masquerade timeout=30s udp=blocked
router wall on=internet nat=firewall
router plain on=internet nat=none
router fixed on=internet nat=full-cone ports=preserving public=192.0.2.7,192.0.2.8
server hub on=plain
relay spare on=internet
host bob on=wall start=2s
machine box on=internet
run box  echo "one # two" | cat
run box sleep 1
flow ann bob every=20ms size=1200 start=2s for=10s
at 30s move ann to office
at 10s block udp on home
at 10s set home loss=50% rate=1mbit
at 11s set home loss=0%
probe box ann ping -c 1 "$WEFT_LAB_PEER" # kept
expect ann bob direct within 10s
expect ann bob relay for 20s
expect ann bob none within 5s for 1s after block udp on home
expect ann bob stays direct through set home loss=0.5 rate=1000kbit
expect ann bob loses nothing for 5s through move ann to office
expect bob ann silent at most 1.5s
expect box ann relay within 1s
`))
	if err != nil {
		t.Fatal(err)
	}
	link := Both(vnet.LinkConfig{Rate: 10e6, Delay: 5 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.025, Reorder: 0.001, Queue: 64000})
	worse, better := link, link
	worse.Out.Loss, worse.Out.Rate = 0.5, 1e6
	worse.In = worse.Out
	better.Out.Loss, better.Out.Rate = 0, 1e6
	better.In = better.Out
	apdm, apdf := weft.AddressAndPortDependentMapping, weft.AddressAndPortDependentFiltering
	want := Scenario{
		Name: "all", About: "One line,   # and this is part of it\nand another.", Limit: 2 * time.Minute,
		Routers: []Router{
			{Name: "home", On: "internet", IPv6: true, Link: link, PoolSize: 4, NAT: vnet.NATConfig{
				Mapping: weft.EndpointIndependentMapping, Filtering: apdf, Allocation: weft.SequentialAllocation, Step: -2,
				Hairpin: true, Pooling: vnet.ArbitraryPooling, Timeout: 2 * time.Minute, MaxMappings: 1000, MaxPerHost: 100,
			}},
			{Name: "office", On: "internet", Kernel: "masquerade", NAT: vnet.NATConfig{
				Mapping: weft.EndpointIndependentMapping, Filtering: apdf, Allocation: weft.PreservingAllocation,
				Timeout: 30 * time.Second, BlockUDP: true,
			}},
			{Name: "wall", On: "internet", NAT: vnet.NATConfig{Mapping: weft.NoNAT, Filtering: apdf}},
			{Name: "plain", On: "internet", NAT: vnet.NATConfig{Mapping: weft.NoNAT}},
			{Name: "fixed", On: "internet", NAT: vnet.NATConfig{
				Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering, Allocation: weft.PreservingAllocation,
				Public: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.8")},
			}},
			{Name: "flat", On: "home", NAT: vnet.NATConfig{
				Mapping: apdm, Filtering: apdf, Allocation: weft.RandomAllocation, RefreshInbound: true,
				OpensLate: 50 * time.Millisecond, Spoils: true,
			}},
		},
		Hosts: []Host{
			{Name: "ann", On: "flat", Link: Both(vnet.LinkConfig{Delay: time.Millisecond})},
			{Name: "hub", On: "plain", Role: Server},
			{Name: "spare", On: "internet", Role: Relay},
			{Name: "bob", On: "wall", Start: 2 * time.Second},
			{Name: "box", On: "internet", Role: Plain, Run: []string{`echo "one # two" | cat`, "sleep 1"}},
		},
		Flows: []Flow{{From: "ann", To: "bob", Every: 20 * time.Millisecond, Size: 1200, Start: 2 * time.Second, For: 10 * time.Second}},
		Events: []Event{
			{At: 10 * time.Second, Verb: Block, Args: []string{"home"}},
			{At: 10 * time.Second, Verb: Set, Args: []string{"home", "loss=50%", "rate=1mbit"}, Link: worse},
			{At: 11 * time.Second, Verb: Set, Args: []string{"home", "loss=0%"}, Link: better},
			{At: 30 * time.Second, Verb: Move, Args: []string{"ann", "office"}},
		},
		Probes: []Probe{{A: "box", B: "ann", Command: `ping -c 1 "$WEFT_LAB_PEER" # kept`}},
		Expect: []Expectation{
			{A: "ann", B: "bob", Path: weft.PathDirect, Within: 10 * time.Second},
			{A: "ann", B: "bob", Path: weft.PathRelay, Hold: 20 * time.Second},
			{A: "ann", B: "bob", Path: weft.PathNone, Within: 5 * time.Second, Hold: time.Second, After: "block udp on home"},
			{A: "ann", B: "bob", Path: weft.PathDirect, Stays: true, Hold: DefaultHold, After: "set home loss=50% rate=1mbit"},
			{A: "ann", B: "bob", Whole: true, Hold: 5 * time.Second, After: "move ann to office"},
			{A: "bob", B: "ann", Gap: 1500 * time.Millisecond},
			{A: "box", B: "ann", Path: weft.PathRelay, Within: time.Second},
		},
	}
	if d := cmp.Diff(want, s, equal...); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	again, err := Parse("all", Format(s))
	if err != nil {
		t.Fatalf("%v\n%s", err, Format(s))
	}
	if d := cmp.Diff(s, again, equal...); d != "" {
		t.Errorf("(-read +read again)\n%s", d)
	}
	if s.Duration() != 2*time.Minute {
		t.Errorf("it takes %v", s.Duration())
	}
	s.Limit = 0
	if s.Duration() != 38*time.Second { // moving at 30 s, then 5 s, the time that packets may take, and one more
		t.Errorf("without a limit it takes %v", s.Duration())
	}
}

func TestHostsWithSeveralLinksAndWhatHappensToThemAreRead(t *testing.T) {
	text := `server hub on=internet
router fibre on=internet nat=none delay=5ms rate=10mbit/50mbit
router lte on=internet nat=symmetric delay=30ms/35ms jitter=-/5ms loss=1% queue=64KB/-
host ann on=fibre,lte:20
host bob on=internet
flow ann bob rate=20mbit size=1200 for=30s
at 5s cut ann.lte
at 6s cut fibre out
at 7s mend ann.lte
at 7s mend fibre
at 8s down ann
at 9s up ann
at 10s every 600ms for 60s down ann.fibre
at 10.3s every 600ms for 60s up ann.fibre
at 11s set ann.lte delay=80ms
at 12s every 1s for 2500ms set lte rate=8mbit
at 12.5s every 1s for 2500ms set lte rate=16mbit
expect ann bob carries 19mbit within 2s for 5s
expect ann bob carries 500kbit within 150ms after cut fibre out
expect ann bob loses at most 5 through cut ann.lte
expect lte idle for 5s
expect ann.fibre idle for 200ms after down ann.fibre
`
	s, err := Parse("links", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	ann := s.Host("ann")
	if d := cmp.Diff([]Leg{{"fibre", 0}, {"lte", 20}}, ann.Legs()); d != "" || ann.On != "fibre" || !ann.Metrics() || s.Host("bob").Metrics() {
		t.Errorf("(-want +got)\n%s", d)
	}
	out, in := vnet.LinkConfig{Delay: 30 * time.Millisecond, Loss: 0.01, Queue: 64000}, vnet.LinkConfig{Delay: 35 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.01}
	if d := cmp.Diff(Link{out, in}, s.Router("lte").Link); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if l := s.Router("fibre").Link; l.Out.Rate != 10e6 || l.In.Rate != 50e6 || l.Out.Delay != l.In.Delay {
		t.Errorf("the fibre is %+v", l)
	}
	if f := s.Flows[0]; f.Every != 480*time.Microsecond {
		t.Errorf("20 Mbit/s in packets of 1200 bytes are one every %v", f.Every)
	}
	for _, c := range []struct {
		name  string
		index int
		all   bool
	}{{"ann", 0, true}, {"ann.fibre", 0, false}, {"ann.lte", 1, false}, {"bob", 0, false}} {
		if h, index, all := s.Leg(c.name); h == nil || index != c.index || all != c.all {
			t.Errorf("%s is link %d of %v, or all: %v", c.name, index, h, all)
		}
	}
	if h, _, _ := s.Leg("bob.fibre"); h != nil {
		t.Error("bob has no such link")
	}
	// What repeats itself happens each time, in order, and each set builds on the one before.
	story := s.Story()
	downs, rates := 0, []float64{}
	for i, e := range story {
		if i > 0 && e.At < story[i-1].At || e.Every != 0 {
			t.Fatalf("%v at %v comes after %v", e, e.At, story[i-1].At)
		}
		if e.String() == "down ann.fibre" {
			downs++
		}
		if e.Verb == Set && e.Args[0] == "lte" {
			rates = append(rates, e.Link.Out.Rate)
			if e.Link.In.Delay != 35*time.Millisecond {
				t.Errorf("%v forgets the delay", e)
			}
		}
	}
	if d := cmp.Diff([]float64{8e6, 16e6, 8e6, 16e6, 8e6, 16e6}, rates); d != "" || downs != 100 {
		t.Errorf("it goes down %d times, and rates are (-want +got)\n%s", downs, d)
	}
	if n := len(s.Expect[4].Times(s)); n != 100 {
		t.Errorf("what is expected after each of 100 downs is judged %d times", n)
	}
	if !strings.Contains(string(Format(s)), "at 10s every 600ms for 60s down ann.fibre\n") || !strings.Contains(string(Format(s)), "jitter=-/5ms") {
		t.Errorf("it is written as\n%s", Format(s))
	}
	again, err := Parse("links", Format(s))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(s, again, equal...); d != "" {
		t.Errorf("(-read +read again)\n%s", d)
	}
}

// valid is a scenario to which one wrong line is added.
const valid = `router home on=internet nat=EIM-APDF
server hub on=internet
host ann on=home
host bob on=internet
machine box on=home
flow ann bob every=20ms
at 20s rebind home
`

func TestAMistakeIsNamedWithItsLineAndWhatWasExpected(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"ruoter x on=internet nat=none", `"ruoter" is no statement: did you mean router?`},
		{"quux", `"quux" is no statement: expected about, limit, router`},
		{"router", "a router needs a name"},
		{"router Home on=internet nat=none", `"Home" cannot be a name: expected a name of up to 32 lower-case letters`},
		{"router internet on=internet nat=none", `"internet" cannot be a name`},
		{"router home on=internet nat=none", "home is there already, on line 1"},
		{"host home on=internet", "home is there already, on line 1"},
		{"router x nat=none", "what is x connected to? expected on=internet"},
		{"router x on=internet", "what does x do? expected nat="},
		{"router x on=hme nat=none", `"hme" is no network: did you mean home?`},
		{"router x on=ann nat=none", "ann is a host, and nothing hangs on one"},
		{"router x on=x nat=none", "x hangs on itself: expected a way to the internet, and there is only x on x"},
		{"router x on=internet nat=EIM-ADPF", `"EIM-ADPF" is no value of nat: expected a NAT: EIM, ADM or APDM`},
		{"router x on=internet nat=none kernel=random", "x has both nat= and kernel="},
		{"router x on=internet kernel=masqerade", `"masqerade" is no value of kernel: expected one of masquerade`},
		{"router x on=internet kernel=random hairpin=yes", "the kernel's NAT has no hairpin="},
		{"router x on=internet nat=firewall pool=2", "x translates nothing, so pool= means nothing"},
		{"router x on=internet nat=EIM-EIF ports=sequential/0", `"sequential/0" is no value of ports`},
		{"router x on=internet nat=EIM-EIF ports=sequential/99999", "is no value of ports"},
		{"router x on=internet nat=EIM-EIF prots=random", `"prots" is no key: did you mean ports?`},
		{"router x on=internet nat=EIM-EIF timeout", `"timeout" needs a value: timeout= and a time`},
		{"router x on=internet nat=EIM-EIF timeout=30", `"30" is no value of timeout: expected a time such as 250ms`},
		{"router x on=internet nat=EIM-EIF timeout=-1s", "is no value of timeout"},
		{"router x on=internet nat=EIM-EIF loss=101%", "is no value of loss: expected a share"},
		{"router x on=internet nat=EIM-EIF rate=fast", "is no value of rate: expected a rate such as 10mbit"},
		{"router x on=internet nat=EIM-EIF rate=0bit", "is no value of rate"},
		{"router x on=internet nat=EIM-EIF queue=1.5B", "is no value of queue"},
		{"router x on=internet nat=EIM-EIF pool=0", "expected a whole number from 1 to 256"},
		{"router x on=internet nat=EIM-EIF loss=1% loss=2%", `"loss" is said twice`},
		{"router x on=internet nat=EIM-EIF pool=2 public=192.0.2.1", "x has both pool= and public="},
		{"router x on=internet nat=EIM-EIF public=10.1.2.3", "10.1.2.3 is no address of the internet"},
		{"router x on=internet nat=EIM-EIF public=100.64.0.1", "100.64.0.1 is no address of the internet"},
		{"router x on=internet nat=EIM-EIF public=192.0.2.1,192.0.2.1", "192.0.2.1 is there twice"},
		{"router x on=internet nat=EIM-EIF public=127.0.0.1", `"127.0.0.1" is no value of public`},
		{"router x on=internet nat=EIM-EIF public=1.2.3", `"1.2.3" is no value of public`},
		{"router x on=internet nat=EIM-EIF public=2001:db8::1", "is no value of public"},
		{"router x on=home nat=EIM-EIF public=192.0.2.1", "x gets its addresses from home"},
		{"router x on=home nat=EIM-EIF ipv6=yes", "x has IPv6 and the network of home, which it is on, has none: expected ipv6=yes on line 1 too"},
		{"host x on=home ipv6=yes", "x has IPv6 and the network of home"},
		{"host x", "where is x? expected on=internet"},
		{"server two on=internet", "there is a server already, on line 2"},
		{"relay x on=home", "nobody reaches x behind home"},
		{"run ann", "expected the name of a host and the command"},
		{"run anm ls", `"anm" is no host: did you mean ann?`},
		{"run home ls", "home is a router: expected a host"},
		{"flow ann", "expected from whom to whom"},
		{"flow ann bob", "how often? expected every="},
		{"flow ann bob every=1ns", "at least 100us"},
		{"flow ann ann every=1s", "ann and itself are no pair"},
		{"flow ann hub every=1s", "hub is a server: expected a host"},
		{"limit", "expected how long the scenario may take"},
		{"limit 25h", "expected how long the scenario may take"},
		{"at 5 rebind home", `"5" is no time`},
		{"at 5s", "expected a time and what happens then"},
		{"at 5s rebnd home", `"rebnd" is no event: did you mean rebind?`},
		{"at 5s rebind", "expected rebind ROUTER"},
		{"at 5s rebind hme", `"hme" is no router: did you mean home?`},
		{"at 5s block tcp on home", `"tcp" stands where udp should: expected block udp on ROUTER`},
		{"at 5s move ann home", "expected move HOST to NETWORK"},
		{"at 5s move ann to home", "ann is on home already"},
		{"at 5s move hub to home", "hub is a server and stays"},
		{"at 5s readdress hub", "hub is a server and stays"},
		{"router x on=internet nat=none\nat 5s readdress x", "x translates nothing"},
		{"at 5s set home", "expected set NAME KEY=VALUE..."},
		{"at 5s set home los=5%", `"los" is no key: did you mean loss?`},
		{"at 5s set hone loss=5%", `"hone" is no router or host: did you mean home?`},
		{"at 5s restart home", "home is a router: expected a host"},
		{"probe ann bob", "expected the names of two machines and the command"},
		{"expect ann bob", "expected two names and what is expected of them"},
		{"expect ann bob direct", "by when, or for how long?"},
		{"expect ann bob drect within 5s", `"drect" is no expectation: did you mean direct?`},
		{"expect ann bob direct whithin 5s", `"whithin" is no clause: did you mean within?`},
		{"expect ann bob direct within", "within what time?"},
		{"expect ann bob direct within 5s within 6s", `"within" is said twice`},
		{"expect ann bob direct within 5s through rebind home", "through stands where after should"},
		{"expect ann bob stays direct", "stays through what?"},
		{"expect ann bob stays", "stays what?"},
		{"expect ann bob stays put for 3s", "stays what? expected direct, relay or none"},
		{"expect ann bob stays direct within 3s through rebind home", "within says by when"},
		{"expect ann bob stays direct through forget home", `"forget home" does not happen: expected rebind home`},
		{"expect ann bob stays direct through", "through what?"},
		{"expect ann bob loses something", "expected: loses nothing"},
		{"expect ann bob loses nothing for 5s", "for how long after what?"},
		{"expect ann bob silent for 5s", "expected: silent at most"},
		{"expect ann home direct within 5s", "home is a router: expected a host"},
		{"expect ann hub direct within 5s", "hub is a server: expected a host"},
		{"expect ann box direct within 5s", "expected a probe of the two"},
		{"host x on=internet\nexpect ann x loses nothing", "no data flows between ann and x"},
		{"limit 10s", "this happens at 20s, and the limit is 10s"},
		{"limit 30s\nexpect ann bob direct within 31s", "this is decided 31s after the beginning, and the limit is 30s"},
		{"host x on=home,home", "x has two links to home"},
		{"host x on=home,hme", `"hme" is no network: did you mean home?`},
		{"host x on=home,internet:0", `"home,internet:0" is no value of on: expected the name of a router`},
		{"host x on=home,", "is no value of on"},
		{"relay x on=internet,home", "x is a relay: expected one network, and no metric"},
		{"relay x on=internet:5", "x is a relay: expected one network, and no metric"},
		{"host x on=home,internet\nat 5s move x to home", "x moves once, and with one link"},
		{"host x on=home,internet\nat 5s readdress x", "x has several links: expected the readdress of a router"},
		{"host x on=home,internet\nat 5s set x loss=5%", "x has several links: expected set x.home, or another of them"},
		{"host x on=home,internet\nat 5s cut x.hom", `"x.hom" is no router or host: did you mean x.home?`},
		{"at 5s every 1s move ann to internet", "how often and for how long?"},
		{"at 5s every 1s for 1s rebind home", "how often and for how long?"},
		{"at 5s every 1ms for 1s rebind home", "how often and for how long? expected every, a time of at least 10ms"},
		{"at 5s every 10ms for 1m rebind home", "at most 1000 times"},
		{"at 5s every 10s for 1m move ann to internet", "ann moves once"},
		{"at 5s cut home up", "expected cut NAME [out or in]"},
		{"at 5s cut", "expected cut NAME"},
		{"at 5s mend hom", `"hom" is no router or host: did you mean home?`},
		{"router x on=internet nat=none rate=-/-", `"-/-" is no value of rate`},
		{"router x on=internet nat=none rate=1mbit/", `"1mbit/" is no value of rate`},
		{"router x on=internet nat=none delay=1ms/2ms/3ms", "is no value of delay: expected a time such as 250ms, 1.5s or 2m, up to 24h, or two, outwards/inwards"},
		{"flow ann bob rate=1gbit", "at least 100us between two packets"},
		{"flow ann bob rate=1mbit every=1ms", "expected every= and a time, or rate="},
		{"expect ann bob carries", "carries how much?"},
		{"expect ann bob carries lots", "carries how much? expected a rate such as 10mbit"},
		{"expect ann bob carries 1mbit", "by when, or for how long?"},
		{"expect ann bob carries 1mbit within 1s through rebind home", "through stands where after should"},
		{"expect ann bob loses at most 0", "expected: loses nothing, or loses at most, and a number"},
		{"expect ann bob loses at most", "expected: loses nothing, or loses at most"},
		{"expect home idle after rebind home", "idle for how long?"},
		{"expect home idle within 5s", "within says by when"},
		{"expect hme idle for 5s", `"hme" is no router, or link of a host: did you mean home?`},
		{"expect home idle for 5s after forget home", `"forget home" does not happen`},
		{"lan office", "which addresses has office? expected prefix="},
		{"lan office prefix=10.0.0.0/24", "office leads nowhere: expected a host with a further link to it, such as: host hq on=internet,office"},
		{"lan office prefix=8.8.8.0/24", `"8.8.8.0/24" is no value of prefix: expected a private network (RFC 1918)`},
		{"lan office prefix=10.0.0.1/24", "is no value of prefix"},
		{"lan office prefix=10.0.0.0/30", "is no value of prefix"},
		{"lan office prefix=fd00::/64", "is no value of prefix"},
		{"lan office prefix=10.0.0.0/24,10.1.0.0/24", "is no value of prefix"},
		{"lan office prefix=10.0.0.0/24,fd00::/48", "is no value of prefix"},
		{"lan home prefix=10.0.0.0/24", "home is there already, on line 1"},
		{"lan office prefix=10.0.0.0/24 gateway=anm\nhost hq on=home,office", `"anm" is no host: did you mean ann?`},
		{"lan office prefix=10.0.0.0/24 gateway=ann\nhost hq on=home,office", "office leads nowhere: expected a host with a further link to it, such as: host ann on=internet,office"},
		{"host hq on=home,office lan", `"lan" is no key`},
		{"lan office prefix=10.0.0.0/24\nhost hq on=office", "hq has no way to the server by office: expected a router or internet first"},
		{"lan office prefix=10.0.0.0/24\nhost hq on=home,office:5", "office is a lan, by which nobody reaches peers: expected no metric"},
		{"lan office prefix=10.0.0.0/24\nrelay x on=office", "nobody reaches x in office"},
		{"lan office prefix=10.0.0.0/24\nrouter x on=office nat=none", "office is a lan, to which only hosts and machines have links"},
		{"lan office prefix=10.0.0.0/24\nat 5s move ann to office", "office is a lan, to which only hosts and machines have links"},
		{"weft", "expected weft HOST COMMAND, such as: weft hq set snat=off"},
		{"weft anm set dns=off", `"anm" is no host: did you mean ann?`},
		{"weft ann node", "node runs already where it should"},
		{"weft ann admin route list", "ann is a host: expected weft admin of the server"},
		{"weft hub set dns=off", "hub is a server: expected weft admin of the server"},
		{"weft box set dns=off", "box runs no weft"},
		{"at 5s weft ann", "expected weft HOST COMMAND"},
		{"at 5s weft anm set dns=off", `"anm" is no host`},
		{"policy", "expected a line of a policy"},
		{"policy {\npolicy \"acls\": [}", "the policy is wrong here: "},
		{"host x on=home tags=a,,b", `"a,,b" is no value of tags`},
		{"host x on=home user=a user=b", `"user" is said twice`},
		{"machine x on=home user=ann", "x is a machine: expected user= of a host only"},
		{"host x on=home rendezvous=yes", "x is a host: expected rendezvous= of a server only"},
		{"host x on=home secret=short:word", `"short:word" is no value of secret: expected NAME:SECRET, a secret of at least 8 letters`},
		{"host x on=home secret=a:long-enough", "hub is no rendezvous: expected rendezvous=yes on line 2"},
		{"host x on=home secret=a:long-enough tags=b", "a network of two words has no users and tags"},
		{"host x on=home address=10.0.0.1/16", "expected secret= beside address="},
		{"host x on=home secret=a:long-enough address=10.0.0.1", "is no value of address"},
		{"flow ann bob every=1s over=sctp", `"sctp" is no value of over: expected udp or tcp`},
		{"expect ann reaches bob", "reaches whom, and what there?"},
		{"expect ann reaches bob http within 3s", `"http" is nothing to be reached: expected tcp:80, udp:53 or icmp`},
		{"expect ann reaches bob tcp:0 within 3s", `"tcp:0" is nothing to be reached`},
		{"expect ann reaches bob udp within 3s", `"udp" is nothing to be reached`},
		{"expect ann reaches bob udp7:53 within 3s", `"udp7:53" is nothing to be reached`},
		{"expect ann reaches bob tcp:80", "by when? expected within and a time"},
		{"expect ann reaches bob tcp:80 as", "as whom? expected a name"},
		{"expect ann reaches bob tcp:80 as ann as bob within 3s", `"as" is said twice`},
		{"expect ann reaches bob icmp as ann within 3s", "an echo does not tell who asked"},
		{"expect ann reaches bbo tcp:80 within 3s", `"bbo" is no host or router: did you mean bob?`},
		{"expect ann reaches bob.hme tcp:80 within 3s", `"bob.hme" is no address of bob`},
		{"expect anm reaches bob tcp:80 within 3s", `"anm" is no host: did you mean ann?`},
		{"expect ann reaches bob tcp:80 at bbo within 3s", `"bbo" is no host: did you mean bob?`},
		{"expect ann reaches bob tcp:80 as hme within 3s", `"hme" is no host`},
		{"expect ann reaches home tcp:80 within 3s", "home is a router, which answers nobody: expected at"},
		{"expect ann reaches ann tcp:80 within 3s", "ann reaches itself"},
		{"expect ann reaches bob tcp:80 within 3s through rebind home", "through stands where after should"},
		{"expect ann reaches bob tcp:80 within 3s after forget home", `"forget home" does not happen`},
		{"expect ann cannot bob tcp:80", "cannot what? expected cannot reach"},
		{"about", "about what?"},
		{"about \x00", "this is not text"},
		{"about \xff", "this is not text"},
	} {
		_, err := Parse("file.scn", []byte(valid+c.line+"\n"))
		if err == nil {
			t.Errorf("%q is taken for right", c.line)
			continue
		}
		_, at, _ := strings.Cut(err.Error(), "file.scn:")
		if !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(at, "8: ") && !strings.HasPrefix(at, "9: ") && !strings.HasPrefix(c.line, "limit") {
			t.Errorf("%q: %v\nwant on line 8: %s", c.line, err, c.want)
		}
	}
}

func TestLansCommandsAndWhoReachesWhomAreRead(t *testing.T) {
	s, err := Parse("x", []byte(`server hub on=internet
lan office prefix=192.168.142.0/24,fd00:142::/64 gateway=two
host one on=internet,office user=ann tags=gate,web
host two on=internet,office start=2s
machine printer on=office
policy {"grants": [
policy   {"src": ["*"], "dst": ["*"], "ip": ["*"]}]} // all # of it
weft one set advertise-routes=192.168.142.0/24   snat=off
flow one printer every=20ms over=tcp
at 3s weft hub admin route approve one 192.168.142.0/24
expect one reaches printer tcp:80 as one within 3s for 2s after weft hub admin route approve one 192.168.142.0/24
expect printer cannot reach two.internet tcp6:22 at one
expect printer cannot reach two.internet udp6:22 at one
expect one printer silent at most 1s
`))
	if err != nil {
		t.Fatal(err)
	}
	prefix := netip.MustParsePrefix
	event := "weft hub admin route approve one 192.168.142.0/24"
	want := Scenario{
		Name: "x",
		Lans: []Lan{{Name: "office", Prefixes: []netip.Prefix{prefix("192.168.142.0/24"), prefix("fd00:142::/64")}, Gateway: "two"}},
		Hosts: []Host{
			{Name: "hub", On: "internet", Role: Server},
			{Name: "one", On: "internet", Places: []Leg{{On: "internet"}, {On: "office"}}, Member: Member{User: "ann", Tags: []string{"gate", "web"}}},
			{Name: "two", On: "internet", Places: []Leg{{On: "internet"}, {On: "office"}}, Start: 2 * time.Second},
			{Name: "printer", On: "office", Role: Plain},
		},
		Policy:   &Policy{Lines: []string{`{"grants": [`, `{"src": ["*"], "dst": ["*"], "ip": ["*"]}]} // all # of it`}},
		Commands: []Command{{Host: "one", Args: []string{"set", "advertise-routes=192.168.142.0/24", "snat=off"}}},
		Flows:    []Flow{{From: "one", To: "printer", Every: 20 * time.Millisecond, TCP: true}},
		Events:   []Event{{At: 3 * time.Second, Verb: Weft, Args: strings.Fields(event)[1:]}},
		Expect: []Expectation{
			{A: "one", B: "printer", Reach: Reach{Service: "tcp:80", As: "one"}, Within: 3 * time.Second, Hold: 2 * time.Second, After: event},
			{A: "printer", B: "two.internet", Reach: Reach{Service: "tcp6:22", At: "one", Not: true}, Hold: DefaultHold},
			{A: "printer", B: "two.internet", Reach: Reach{Service: "udp6:22", At: "one", Not: true}, Hold: DefaultHold},
			{A: "one", B: "printer", Gap: time.Second},
		},
	}
	if d := cmp.Diff(want, s, equal...); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if g := s.Gateway(s.Lan("office")); g == nil || g.Name != "two" {
		t.Errorf("the gateway is %v", g)
	}
	if what, line := s.OnlyReal(); what != "have a lan" || line != 2 {
		t.Errorf("only real machines %s, on line %d", what, line)
	}
	again, err := Parse("x", Format(s))
	if err != nil {
		t.Fatalf("%v\n%s", err, Format(s))
	}
	if d := cmp.Diff(s, again, equal...); d != "" {
		t.Errorf("(-read +read again)\n%s", d)
	}
}

func TestNodesOfTwoWordsNeedARendezvousAndOneSecret(t *testing.T) {
	text := "server iex on=internet rendezvous=yes\nhost ann on=internet secret=a:long-enough\nhost eve on=internet secret=b:long-enough\n"
	if _, err := Parse("x", []byte(text)); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"host bob on=internet":            "x:4: iex introduces by two words only: expected a host with secret=",
		"policy {}":                       "x:4: iex introduces by two words, and keeps no policy",
		"weft iex admin route list":       "x:4: iex runs no weft to say that to",
		"expect ann eve direct within 5s": "x:4: ann and eve are in two networks",
	} {
		if _, err := Parse("x", []byte(text+line+"\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}

func TestRoutersMayNotHangOnEachOtherInACircleNorTooDeep(t *testing.T) {
	_, err := Parse("x", []byte("router a on=b nat=none\nrouter b on=c nat=none\nrouter c on=a nat=none\n"))
	if err == nil || err.Error() != "x:1: a hangs on itself: expected a way to the internet, and there is only a on b on c on a" {
		t.Errorf("a circle: %v", err)
	}
	deep := "router r1 on=internet nat=none\n"
	for i := 2; i <= MaxDepth; i++ {
		deep += fmt.Sprintf("router r%d on=r%d nat=none\n", i, i-1)
	}
	if _, err := Parse("x", []byte(deep)); err != nil {
		t.Errorf("as deep as may be: %v", err)
	}
	deep += fmt.Sprintf("router r%d on=r%d nat=none\n", MaxDepth+1, MaxDepth)
	if _, err := Parse("x", []byte(deep)); err == nil || !strings.Contains(err.Error(), "x:5: r5 has 5 routers between its network and the internet: expected 4 at most") {
		t.Errorf("too deep: %v", err)
	}
}

func TestNodesNeedAServerAndMistakesAreToldTogether(t *testing.T) {
	if _, err := Parse("x", []byte("host ann on=internet\n")); err == nil || !strings.Contains(err.Error(), "ann has no server to join: expected a line such as: server hub on=internet") {
		t.Errorf("without a server: %v", err)
	}
	_, err := Parse("x", []byte(strings.Repeat("foo\n", 30)))
	if list, ok := err.(Errors); !ok || len(list) != maxErrors || list[1].Line != 2 {
		t.Errorf("thirty mistakes: %v", err)
	}
	if _, err := Parse("x", []byte(strings.Repeat("#", MaxText+1))); err == nil {
		t.Error("a text that is too long is read")
	}
	many := "server hub on=internet\n"
	for i := range MaxMachines {
		many += fmt.Sprintf("host h%d on=internet\n", i)
	}
	if _, err := Parse("x", []byte(many)); err == nil || !strings.Contains(err.Error(), "one machine too many") {
		t.Errorf("too many machines: %v", err)
	}
	if s, err := Parse("x", nil); err != nil || s.Duration() != DefaultLimit {
		t.Errorf("nothing at all is an empty internet: %v", err)
	}
}

func TestWhatFormatWritesParseReadsAsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawText(t)
		s, err := Parse("x", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		out := Format(s)
		again, err := Parse("x", out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if d := cmp.Diff(s, again, equal...); d != "" {
			t.Fatalf("(-read +read again)\n%s\n%s", d, out)
		}
		if string(Format(again)) != string(out) {
			t.Fatalf("the second time it is written in another way:\n%s\n%s", out, Format(again))
		}
	})
}

// drawText draws a scenario that is right.
func drawText(t *rapid.T) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	pick := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
	duration := rapid.Custom(func(t *rapid.T) string {
		return time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "duration")).String()
	})
	link := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{
			"delay=" + duration.Draw(t, "delay"),
			fmt.Sprintf("loss=%v%%", rapid.IntRange(0, 10000).Draw(t, "loss")/100),
			"loss=" + strings.TrimRight(fmt.Sprintf("%.12f", rapid.Float64Range(0, 1).Draw(t, "loss")), "0") + "0",
			fmt.Sprintf("rate=%dkbit", rapid.IntRange(1, 1e6).Draw(t, "rate")),
			fmt.Sprintf("rate=%.3fmbit", rapid.Float64Range(0.001, 1e4).Draw(t, "rate")),
			fmt.Sprintf("queue=%dB", rapid.IntRange(1, 1e6).Draw(t, "queue")),
			fmt.Sprintf("queue=%dB/-", rapid.IntRange(1, 1e6).Draw(t, "queue")),
			"jitter=" + duration.Draw(t, "jitter") + "/" + duration.Draw(t, "jitter"),
			fmt.Sprintf("rate=-/%dkbit", rapid.IntRange(1, 1e6).Draw(t, "rate")),
		}).Draw(t, "link")
	})
	nats := []string{"none", "firewall", "none-ADF", "kernel"}
	networks := []string{Internet}
	depth := map[string]int{}
	for i := range rapid.IntRange(0, 6).Draw(t, "routers") {
		name, on := fmt.Sprintf("r%d", i), pick("on", networks...)
		words := "nat=" + pick("nat", append(nats, "EIM-APDF", "ADM-ADF", "symmetric", "APDM-EIF", "full-cone")...)
		if words == "nat=kernel" {
			words = "kernel=" + pick("kernel", "masquerade", "random", "dnat", "firewall")
		} else if !strings.Contains(words, "none") && !strings.Contains(words, "firewall") {
			words += pick("ports", "", " ports=preserving", " ports=sequential", " ports=sequential/7", " ports=random") +
				pick("hairpin", "", " hairpin=yes", " hairpin=no") + pick("pool", "", " pool=3 pooling=arbitrary", " pooling=paired") +
				pick("table", "", " mappings=100 per-host=10", " spoils=yes", " late=40ms refresh=both")
		}
		words += pick("timeout", "", " timeout="+duration.Draw(t, "timeout"), " udp=blocked")
		line("router %s on=%s %s %s", name, on, words, link.Draw(t, "link"))
		if depth[name] = depth[on] + 1; depth[name] < MaxDepth {
			networks = append(networks, name)
		}
	}
	line("server hub on=internet %s", link.Draw(t, "link"))
	for _, name := range []string{"ann", "bob"} {
		line("host %s on=%s start=%s", name, pick("on", networks...), duration.Draw(t, "start"))
	}
	if rapid.Bool().Draw(t, "lan") {
		line("lan office prefix=%s%s", pick("prefix", "192.168.142.0/24", "10.0.0.0/8"), pick("six", "", ",fd00:142::/64 gateway=hq"))
		line("host hq on=internet,office %s %s", pick("member", "", "user=ann", "tags=a,b"), link.Draw(t, "link"))
		line("machine desk on=office")
		line("weft hq set snat=off")
		line("at %s weft hub admin %s", duration.Draw(t, "at"), rapid.StringMatching(`[a-z=/.]{1,9}( [a-z]{1,3})?`).Draw(t, "command"))
		line("flow ann desk every=20ms%s", pick("over", "", " over=tcp", " over=udp"))
		line("expect ann reaches desk %s within 3s%s", pick("service", "tcp:80", "tcp6:80 as hq", "icmp", "tcp:1 at hq as bob", "icmp6", "udp:53 as bob", "udp6:1"), pick("for", "", " for 5s"))
		line("expect desk cannot reach hq.internet %s%s", pick("service", "tcp:80", "tcp6:80 as hq"), pick("for", "", " for 5s", " within 2s for 10s"))
		line("policy %s", pick("policy", `{"acls": []} // # all`, `{}`))
	}
	if len(networks) > 1 {
		line("host eve on=%s,%s:%d", networks[0], networks[1], rapid.IntRange(1, maxMetric).Draw(t, "metric"))
	}
	if rapid.Bool().Draw(t, "about") {
		line("about %s", rapid.StringMatching(`[a-zA-Z#=., ]*[a-z]`).Draw(t, "about"))
	}
	line("run ann %s", rapid.StringMatching(`[a-z#=$"' ]*[a-z]`).Draw(t, "command"))
	line("flow ann bob every=%s size=%d", "1h"+duration.Draw(t, "every"), rapid.IntRange(1, 1400).Draw(t, "size"))
	events := []string{"readdress ann", "down bob", "up bob", "restart hub", "stop ann", "start ann",
		"set ann " + link.Draw(t, "link"), "set bob delay=0s " + strings.Replace(link.Draw(t, "link"), "delay", "jitter", 1)}
	if len(networks) > 1 {
		events = append(events, "down eve", "cut eve.internet", "mend eve.r0", "set eve.r0 "+link.Draw(t, "link"))
	}
	if len(depth) > 0 {
		events = append(events, "cut r0 in", "block udp on r0", "allow udp on r0", "forget r0", "down r0", "set r0 loss=7%")
	}
	for _, e := range rapid.SliceOf(rapid.SampledFrom(events)).Draw(t, "events") {
		line("at %s %s%s", duration.Draw(t, "at"), pick("repetition", "", "", "every 5s for 1m "), e)
		line("expect ann bob %s %s", pick("expectation", "stays direct through", "loses nothing through", "silent at most 3s for 9s through",
			"direct within 5s after", "relay for 7s after", "none within 1m for 1h after",
			"loses at most 7 through", "carries 1500bit within 1s after", "carries 1mbit for 3s after"), e)
	}
	line("expect ann bob %s", pick("expectation", "direct within 5s", "relay for 1m", "loses nothing", "silent at most 2s", "carries 7mbit within 1s for 5s"))
	return b.String()
}

func FuzzParse(f *testing.F) {
	for _, name := range Shipped() {
		_, text, err := Open(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse("x", text)
		if err != nil {
			if list, ok := err.(Errors); !ok || len(list) == 0 || len(list) > maxErrors || list[0].Line < 1 {
				t.Fatalf("an error without a line: %#v", err)
			}
			return
		}
		again, err := Parse("x", Format(s))
		if err != nil {
			t.Fatalf("%v\n%s", err, Format(s))
		}
		if d := cmp.Diff(s, again, equal...); d != "" {
			t.Fatalf("(-read +read again)\n%s", d)
		}
		if s.Duration() <= 0 || s.Duration() > MaxLimit {
			t.Fatalf("it takes %v", s.Duration())
		}
	})
}
