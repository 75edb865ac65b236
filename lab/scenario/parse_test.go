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
	link := Link{Rate: 10e6, Delay: 5 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.025, Reorder: 0.001, Queue: 64000}
	worse, better := link, link
	worse.Loss, worse.Rate = 0.5, 1e6
	better.Loss, better.Rate = 0, 1e6
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
			{Name: "ann", On: "flat", Link: Link{Delay: time.Millisecond}},
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
	if rapid.Bool().Draw(t, "about") {
		line("about %s", rapid.StringMatching(`[a-zA-Z#=., ]*[a-z]`).Draw(t, "about"))
	}
	line("run ann %s", rapid.StringMatching(`[a-z#=$"' ]*[a-z]`).Draw(t, "command"))
	line("flow ann bob every=%s size=%d", "1h"+duration.Draw(t, "every"), rapid.IntRange(1, 1400).Draw(t, "size"))
	events := []string{"readdress ann", "down bob", "up bob", "restart hub", "stop ann", "start ann",
		"set ann " + link.Draw(t, "link"), "set bob delay=0s " + strings.Replace(link.Draw(t, "link"), "delay", "jitter", 1)}
	if len(depth) > 0 {
		events = append(events, "block udp on r0", "allow udp on r0", "forget r0", "down r0", "set r0 loss=7%")
	}
	for _, e := range rapid.SliceOf(rapid.SampledFrom(events)).Draw(t, "events") {
		line("at %s %s", duration.Draw(t, "at"), e)
		line("expect ann bob %s %s", pick("expectation", "stays direct through", "loses nothing through", "silent at most 3s for 9s through",
			"direct within 5s after", "relay for 7s after", "none within 1m for 1h after"), e)
	}
	line("expect ann bob %s", pick("expectation", "direct within 5s", "relay for 1m", "loses nothing", "silent at most 2s"))
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
