package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/lab/scenario"
)

// run runs a scenario's text.
func run(t testing.TB, text string, o scenario.Options) scenario.Result {
	t.Helper()
	s, err := scenario.Parse("test", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Backend{}.Run(context.Background(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTheSameSeedGivesTheSameRunToTheLastPacket(t *testing.T) {
	for _, name := range []string{"hotel", "roaming", "relay-outage", "two-symmetric-sequential"} {
		s, _, err := scenario.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		var results []scenario.Result
		for _, seed := range []uint64{7, 7, 8} {
			r, err := Backend{}.Run(context.Background(), s, scenario.Options{Seed: seed, KeepTrace: true})
			if err != nil {
				t.Fatal(err)
			}
			results = append(results, r)
		}
		for i, p := range results[0].Trace {
			if i >= len(results[1].Trace) || p != results[1].Trace[i] {
				t.Fatalf("%s: two runs with one seed differ from packet %d on: %+v", name, i, p)
			}
		}
		if slices.Equal(results[0].Trace, results[2].Trace) {
			t.Errorf("%s: two seeds give the same run", name)
		}
		results[0].Trace, results[1].Trace = nil, nil
		if d := cmp.Diff(results[0], results[1]); d != "" {
			t.Errorf("%s: two runs with one seed differ:\n%s", name, d)
		}
	}
}

const homes = `router home-a on=internet nat=EIM-APDF ports=preserving delay=5ms
router home-b on=internet nat=EIM-APDF ports=random delay=8ms
server hub on=internet delay=5ms
host ann on=home-a
host bob on=home-b
`

func TestWhatIsNotSoIsNotAsExpected(t *testing.T) {
	r := run(t, homes+`flow ann bob every=50ms start=5s
at 10s block udp on home-a
expect ann bob relay for 5s
expect ann bob stays direct through block udp on home-a
expect ann bob direct within 1s
`, scenario.Options{Seed: 1})
	var ok []bool
	for _, o := range r.Outcomes {
		ok = append(ok, o.OK)
	}
	if r.OK || !slices.Equal(ok, []bool{false, false, true}) {
		t.Errorf("%s", told(r))
	}
}

func TestEverythingThatCanHappenHappens(t *testing.T) {
	r := run(t, homes+`router cafe on=internet nat=symmetric delay=9ms
flow ann bob every=50ms start=1s
at 10s block udp on home-a
at 20s allow udp on home-a
at 40s down home-b
at 43s up home-b
at 60s readdress home-b
at 75s readdress ann
at 90s set home-a delay=20ms jitter=2ms
at 100s stop bob
at 104s start bob
at 120s restart ann
at 140s move bob to internet
at 160s down ann
at 163s up ann
expect ann bob direct within 5s
expect ann bob relay within 5s for 4s after block udp on home-a
expect ann bob direct within 15s for 2s after allow udp on home-a
expect ann bob relay within 3s after down home-b
expect ann bob direct within 15s for 2s after up home-b
expect ann bob direct within 14s for 1s after readdress home-b
expect ann bob direct within 14s for 1s after readdress ann
expect ann bob stays direct for 9s through set home-a delay=20ms jitter=2ms
expect ann bob none within 100ms for 3s after stop bob
expect ann bob direct within 10s for 5s after start bob
expect ann bob none within 100ms after restart ann
expect ann bob direct within 15s for 5s after restart ann
expect ann bob direct within 5s for 5s after move bob to internet
expect ann bob silent at most 5s for 15s through down ann
`, scenario.Options{Seed: 3})
	if !r.OK {
		t.Errorf("%s", told(r))
	}
	if n := len(r.Changes); n < 14 || r.Changes[0].Path != weft.PathRelay {
		t.Errorf("%d changes of path: %v", n, r.Changes)
	}
}

func TestWhoIsSwitchedOnLaterIsMetThen(t *testing.T) {
	r := run(t, homes+`host carl on=home-b start=10s
expect ann bob direct within 2s
expect ann carl none for 10s
expect ann carl direct within 12s for 5s
expect bob carl direct within 12s for 5s
`, scenario.Options{Seed: 1})
	if !r.OK || len(r.Pairs) != 3 {
		t.Errorf("%s", told(r))
	}
	for _, p := range r.Pairs {
		if late := p.B == "carl"; p.DirectAfter <= 0 || p.DirectAfter.Seconds() > 2 {
			t.Errorf("%s and %s (late: %v) are direct after %v, counted from when both are on", p.A, p.B, late, p.DirectAfter)
		}
	}
}

func TestATraceShowsWhatEveryPlaceDidToAPacket(t *testing.T) {
	r := run(t, `router open on=internet nat=symmetric delay=10ms
router shut on=internet nat=EIM-APDF delay=10ms
server hub on=internet delay=10ms
relay spare on=internet delay=10ms
host ann on=open
host bob on=shut
expect ann bob direct within 40s
`, scenario.Options{Seed: 1, KeepTrace: true})
	if !r.OK || r.Pairs[0].Way != "sprayed" {
		t.Fatalf("%s", told(r))
	}
	seen := map[string]int{}
	for i, p := range r.Trace {
		if i > 0 && p.At < r.Trace[i-1].At {
			t.Fatalf("the trace goes back in time: %+v", p)
		}
		switch {
		case p.What == "":
			t.Fatalf("a packet without a name: %+v", p)
		case p.What == "ping" && p.Where == "internet" && p.Why == "dropped: time to live exceeded":
			seen["opener that ends on the way"]++
		case p.What == "ping" && p.Where == "shut" && p.Dropped:
			seen["guess that is wrong"]++
		case p.What == "pong" && p.Where == "ann":
			seen["answer"]++
		case p.What == "STUN discovery" && p.Where == "hub":
			seen["discovery"]++
		case strings.HasPrefix(p.What, "proposes a spray"):
			seen["proposal"]++
		}
	}
	for _, what := range []string{"opener that ends on the way", "guess that is wrong", "answer", "discovery", "proposal"} {
		if seen[what] == 0 {
			t.Errorf("no %s in the trace: %v", what, seen)
		}
	}
	short := run(t, homes+"expect ann bob direct within 5s\n", scenario.Options{Seed: 1, KeepTrace: true, MaxTrace: 10})
	if len(short.Trace) != 10 {
		t.Errorf("%d packets are kept, not the first ten", len(short.Trace))
	}
}

func TestWhatOnlyRealMachinesDoIsRefused(t *testing.T) {
	for _, line := range []string{"machine box on=internet\nrun box true\n", "probe ann bob true\n"} {
		s, err := scenario.Parse("x", []byte(homes+line))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Backend{}.Run(context.Background(), s, scenario.Options{})
		var unsupported *scenario.Unsupported
		if !errors.As(err, &unsupported) || unsupported.Line != 6 || !strings.Contains(err.Error(), "--backend netns") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestARunThatIsInterruptedEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s, _, err := scenario.Open("hotel")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Backend{}).Run(ctx, s, scenario.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// BenchmarkCell is one run of a cell of the matrix: two homes, a server and a relay, until the pair is direct.
func BenchmarkCell(b *testing.B) {
	for name, nats := range map[string][2]string{"plain": {"EIM-APDF", "EIM-APDF"}, "spray": {"APDM-APDF", "EIM-APDF"}} {
		b.Run(name, func(b *testing.B) {
			text := "router a on=internet nat=" + nats[0] + " delay=10ms\nrouter b on=internet nat=" + nats[1] + ` delay=10ms
server hub on=internet delay=10ms
relay spare on=internet delay=10ms
host ann on=a
host bob on=b
expect ann bob direct within 40s
`
			seed := uint64(0)
			for b.Loop() {
				seed++
				if r := run(b, text, scenario.Options{Seed: seed}); !r.OK {
					b.Fatal(told(r))
				}
			}
		})
	}
}
