package scenario

import (
	"strings"
	"testing"
	"time"

	"weft"
)

func TestATimelineTellsWhatHappenedInItsOrder(t *testing.T) {
	at := func(s float64) time.Duration { return time.Duration(s * 1e9) }
	probe := Packet{From: "192.0.2.1:1", To: "192.0.2.2:2", Where: "home", What: "ping", Dropped: true, Why: "no mapping"}
	r := Result{Scenario: "x", Backend: "vnet", Seed: 3, Elapsed: at(5), Changes: []Change{{at(1.5), "ann", "bob", weft.PathDirect}}}
	for i := range 3 {
		p := probe
		p.At = at(1 + float64(i)/10)
		r.Trace = append(r.Trace, p)
	}
	r.Trace = append(r.Trace, Packet{At: at(2), From: "192.0.2.1:1", To: "192.0.2.2:2", Where: "ann", What: "pong", Why: "time to live 4"})
	s := Scenario{Events: []Event{{At: at(1.4), Verb: Rebind, Args: []string{"home"}}, {At: at(9), Verb: Forget, Args: []string{"home"}}}}
	var b strings.Builder
	if err := WriteTimeline(&b, s, r); err != nil {
		t.Fatal(err)
	}
	want := `# x on vnet, seed 3: time, place, what it was, from, to
    1.0000s  home         ping                               192.0.2.1:1 -> 192.0.2.2:2            X no mapping  (and 2 more until 1.2000s)
    1.4000s  *** rebind home
    1.5000s  *** ann and bob: direct
    2.0000s  ann          pong                               192.0.2.1:1 -> 192.0.2.2:2            (time to live 4)
`
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", b.String(), want)
	}
}

func TestAResultIsPrintedForPeople(t *testing.T) {
	r := Result{
		Scenario: "x", Backend: "vnet", Seed: 3, Elapsed: 5 * time.Second,
		Outcomes: []Outcome{{"ann bob direct within 5s", 3, true, "direct at 1s, after 1s"}, {"ann bob loses nothing", 4, false, "2 packets lost"}},
		Pairs:    []PairResult{{A: "ann", B: "bob", Path: weft.PathDirect, DirectAfter: time.Second, Packets: 12, Way: "plain", Reason: "it answered"}},
		Flows:    []FlowResult{{"ann", "bob", 100, 2, 40 * time.Millisecond, 3, 1234567}},
	}
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	want := `x: NOT as expected (vnet, seed 3, 5s of the scenario's time)
  yes  ann bob direct within 5s
        direct at 1s, after 1s
  NO   ann bob loses nothing
        2 packets lost

  pair       path    found  direct after  packets  why
  ann - bob  direct  plain  1s            12       it answered

  flow        sent  lost  longest silence  out of order  rate
  ann to bob  100   2     0.04s            3             1.235 Mbit/s
`
	if b.String() != want {
		t.Errorf("%s\nwant\n%s", b.String(), want)
	}
}
