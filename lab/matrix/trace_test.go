package matrix

import (
	stdcmp "cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/lab/scenario"
)

// A trace tells of single hops. at is in milliseconds.
func hop(at int, where, from, to, what string) scenario.Packet {
	return scenario.Packet{At: time.Duration(at) * time.Millisecond, Where: where, From: from, To: to, What: what}
}

func drop(p scenario.Packet, why string) scenario.Packet {
	p.Dropped, p.Why = true, why
	return p
}

func sampled(t *testing.T, l Layout, trace []scenario.Packet) *Sample {
	t.Helper()
	p := planned(t, Config{Matrix: "rfc3489", Layout: l})
	return newSample(p.Cells[0].Scenario, 1, scenario.Result{Trace: trace})
}

func TestLanesGoFromOneNodeOutwardsAndInwardsToTheOther(t *testing.T) {
	for l, want := range map[Layout]string{
		Single: "a nat-a internet server relay nat-b b", Double: "a inner-a nat-a internet server relay nat-b inner-b b",
		Hairpin: "a nat-a carrier internet server relay nat-b b", Shared: "a nat internet server relay b",
	} {
		if got := strings.Join(sampled(t, l, nil).Lanes, " "); got != want {
			t.Errorf("%s: %s", l, got)
		}
	}
}

func TestADatagramIsFollowedThroughItsNATs(t *testing.T) {
	s := sampled(t, Single, []scenario.Packet{
		hop(0, "a", "10.0.0.2:1", "203.0.113.2:9", "probe"),
		hop(0, "nat-a", "203.0.113.1:5", "203.0.113.2:9", "probe"),
		hop(5, "b", "10.0.0.3:1", "203.0.113.1:5", "probe"), // the other one's crosses it
		hop(5, "nat-b", "203.0.113.2:9", "203.0.113.1:5", "probe"),
		drop(hop(20, "nat-b", "203.0.113.1:5", "203.0.113.2:9", "probe"), "filtered"),
		hop(25, "nat-a", "203.0.113.2:9", "10.0.0.2:1", "probe"),
		hop(25, "a", "203.0.113.2:9", "10.0.0.2:1", "probe"),
		hop(26, "a", "10.0.0.2:1", "203.0.113.2:9", "probe"), // another one
		hop(27, "b", "10.0.0.3:1", "203.0.113.1:5", "pong"),
		drop(hop(27, "b", "10.0.0.3:1", "203.0.113.1:5", "pong"), "lost on the link"),
	})
	ms := time.Millisecond
	want := []Step{
		{At: 0, Until: 0, From: "a", End: "nat-b", Via: []string{"nat-a"}, What: "probe", Source: "203.0.113.1:5", Target: "203.0.113.2:9", Count: 1, Dropped: true, Why: "filtered"},
		{At: 5 * ms, Until: 5 * ms, From: "b", End: "a", Via: []string{"nat-b", "nat-a"}, What: "probe", Source: "203.0.113.2:9", Target: "203.0.113.1:5", Count: 1},
		{At: 26 * ms, Until: 26 * ms, From: "a", End: "a", What: "probe", Source: "10.0.0.2:1", Target: "203.0.113.2:9", Count: 1},
		{At: 27 * ms, Until: 27 * ms, From: "b", End: "b", What: "pong", Source: "10.0.0.3:1", Target: "203.0.113.1:5", Count: 1, Dropped: true, Why: "lost on the link"},
	}
	if diff := cmp.Diff(want, s.Steps); diff != "" {
		t.Error(diff)
	}
}

// The router of the netns backend tells of a datagram as it came, that of the vnet backend as it goes.
func TestADatagramIsFollowedAlsoWhereNATsTellOfItBeforeTheyChangeIt(t *testing.T) {
	s := sampled(t, Single, []scenario.Packet{
		hop(0, "a", "10.0.0.2:1", "203.0.113.9:3478", "bind"), hop(0, "nat-a", "10.0.0.2:1", "203.0.113.9:3478", "bind"),
		hop(0, "server", "203.0.113.1:5", "203.0.113.9:3478", "bind"),
		hop(1, "b", "10.0.0.3:1", "203.0.113.9:3478", "bind"), hop(1, "nat-b", "10.0.0.3:1", "203.0.113.9:3478", "bind"),
		hop(1, "server", "203.0.113.2:9", "203.0.113.9:3478", "bind"),
		hop(2, "a", "10.0.0.2:1", "203.0.113.2:9", "ping"), hop(2, "nat-a", "10.0.0.2:1", "203.0.113.2:9", "ping"),
		hop(3, "b", "10.0.0.3:1", "203.0.113.1:5", "ping"), hop(3, "nat-b", "10.0.0.3:1", "203.0.113.1:5", "ping"),
		drop(hop(22, "nat-b", "203.0.113.1:5", "203.0.113.2:9", "ping"), "filtered"),
		hop(23, "nat-a", "203.0.113.2:9", "203.0.113.1:5", "ping"), hop(23, "a", "203.0.113.2:9", "10.0.0.2:1", "ping"),
	})
	var got []string
	for _, st := range s.Steps {
		got = append(got, fmt.Sprint(st.From, st.Via, st.End, " ", st.What, " ", st.Dropped))
	}
	want := []string{"a[nat-a]server bind false", "b[nat-b]server bind false", "a[nat-a]nat-b ping true", "b[nat-b nat-a]a ping false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestADatagramIsFollowedThroughAHairpin(t *testing.T) {
	turned := hop(10, "carrier", "203.0.113.1:70", "100.64.0.3:9", "ping")
	turned.Why = "turned back inside"
	s := sampled(t, Hairpin, []scenario.Packet{
		hop(0, "a", "10.0.0.2:1", "203.0.113.1:80", "ping"), hop(0, "nat-a", "100.64.0.2:7", "203.0.113.1:80", "ping"), turned,
		hop(20, "nat-b", "203.0.113.1:70", "10.0.0.3:1", "ping"), hop(20, "b", "203.0.113.1:70", "10.0.0.3:1", "ping"),
	})
	if len(s.Steps) != 1 || s.Steps[0].End != "b" || !slices.Equal(s.Steps[0].Via, []string{"nat-a", "carrier", "nat-b"}) || s.Steps[0].Why != "turned back inside" {
		t.Errorf("%+v", s.Steps)
	}
}

func TestWhatIsSentOnceThereIsADirectPathIsNotTold(t *testing.T) {
	p := planned(t, Config{Matrix: "rfc3489"})
	var trace []scenario.Packet
	for _, at := range []int{0, 200, 290, 310, 5000} {
		trace = append(trace, hop(at, "a", "10.0.0.2:1", "203.0.113.2:9", fmt.Sprint("ping ", at)))
	}
	res := direct(Plain, 200*time.Millisecond)
	res.Trace = trace
	if s := newSample(p.Cells[0].Scenario, 1, res); len(s.Steps) != 3 {
		t.Errorf("%+v", s.Steps)
	}
}

// A NAT that sends on what is for a private address says so of an address that a host elsewhere has, too.
func TestAHostGetsOnlyWhatWasUnderWayToIt(t *testing.T) {
	s := sampled(t, Single, []scenario.Packet{
		hop(0, "a", "10.0.0.2:1", "203.0.113.9:1", "hello"),
		hop(5, "b", "10.0.0.3:1", "10.0.0.2:1", "ping"), hop(5, "nat-b", "10.0.0.3:1", "10.0.0.2:1", "ping"),
		hop(5, "a", "203.0.113.2:9", "10.0.0.2:1", "ping"),
	})
	if len(s.Steps) != 2 || s.Steps[1].End != "nat-b" {
		t.Errorf("%+v", s.Steps)
	}
}

// Of two that could have come to a place, that one did which is seen elsewhere at the same instant.
func TestWhatHappensAtTheSameInstantIsOneJourney(t *testing.T) {
	s := sampled(t, Single, []scenario.Packet{
		hop(0, "a", "10.0.0.2:1", "203.0.113.2:1", "ping"), hop(0, "nat-a", "10.0.0.2:1", "203.0.113.2:1", "ping"),
		hop(1, "a", "10.0.0.2:1", "203.0.113.9:3478", "ping"), hop(1, "nat-a", "10.0.0.2:1", "203.0.113.9:3478", "ping"),
		hop(2, "b", "10.0.0.3:1", "203.0.113.9:3478", "ping"), hop(2, "nat-b", "10.0.0.3:1", "203.0.113.9:3478", "ping"),
		hop(2, "server", "203.0.113.2:7", "203.0.113.9:3478", "ping"),
	})
	if last := s.Steps[len(s.Steps)-1]; last.From != "b" || last.End != "server" {
		t.Errorf("%+v", s.Steps)
	}
}

// The same place twice is two datagrams, unless the second time tells that the first was dropped.
func TestTwoAlikeAtTheSamePlaceAreTwo(t *testing.T) {
	s := sampled(t, Single, []scenario.Packet{
		hop(0, "nat-a", "203.0.113.1:5", "203.0.113.2:9", "ping"), hop(100, "nat-a", "203.0.113.1:5", "203.0.113.2:9", "ping"),
	})
	if len(s.Steps) != 1 || s.Steps[0].Count != 2 {
		t.Errorf("%+v", s.Steps)
	}
}

func TestASprayIsOneStepAndSingleProbesStaySingle(t *testing.T) {
	var trace []scenario.Packet
	for i := range 2048 {
		to := fmt.Sprintf("203.0.113.2:%d", 1024+i)
		trace = append(trace, hop(2*i, "a", "10.0.0.2:1", to, "probe"), hop(2*i, "nat-a", "203.0.113.1:5", to, "probe"), drop(hop(2*i, "nat-b", "203.0.113.1:5", to, "probe"), "no mapping"))
		if i%100 == 0 { // other traffic in between
			trace = append(trace, hop(2*i, "b", "10.0.0.3:1", "198.51.100.1:3478", fmt.Sprint("keep ", i)))
		}
	}
	for i := range 3 {
		trace = append(trace, hop(10_000+100*i, "a", "10.0.0.2:1", "203.0.113.2:9", "probe"))
	}
	s := sampled(t, Single, trace)
	first := s.Steps[0]
	want := Step{At: 0, Until: 2 * 2047 * time.Millisecond, From: "a", End: "nat-b", Via: []string{"nat-a"}, What: "probe", Source: "203.0.113.1:5", Target: "203.0.113.2", Count: 2048,
		Dropped: true, Why: "no mapping"}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
	if len(s.Steps) != 1+21+3 {
		t.Errorf("%d steps", len(s.Steps))
	}
}

func TestOfALongTraceThatIsKeptWhichTellsTheMost(t *testing.T) {
	var trace []scenario.Packet
	for i := range 500 {
		from, to := "10.0.0.2:1", "203.0.113.2:9"
		if i > 100 { // what goes to servers tells less, though it is later
			to = "203.0.113.100:3478"
		}
		trace = append(trace, hop(1000*i, "a", from, to, "ping"))
		if i > 100 {
			trace = append(trace, hop(1000*i, "nat-a", from, to, "ping"), hop(1000*i, "server", from, to, "ping"))
		}
	}
	for i := range 30 {
		trace = append(trace, hop(300_000+i, "b", "10.0.0.3:1", "203.0.113.1:9", "opener"))
	}
	s := sampled(t, Single, trace)
	var early, crowds, late, skipped int
	for _, st := range s.Steps {
		skipped += st.Skipped
		switch {
		case st.What == "opener":
			crowds++
		case st.At <= 100*time.Second:
			early++
		case st.At >= 480*time.Second:
			late++
		}
	}
	if len(s.Steps) != maxSteps || early != maxSteps-lastSteps-1 || crowds != 1 || late != lastSteps || skipped != 501-maxSteps {
		t.Errorf("%d steps, %d early, %d crowds, %d late; %d skipped", len(s.Steps), early, crowds, late, skipped)
	}
	if !slices.IsSortedFunc(s.Steps, func(a, b Step) int { return stdcmp.Compare(a.At, b.At) }) {
		t.Error("they are no longer in order")
	}
}

func TestOfALongLogTheEndIsKeptByWholeLines(t *testing.T) {
	p := planned(t, Config{Matrix: "rfc3489"})
	log := strings.Repeat("a line\n", maxLog)
	s := newSample(p.Cells[0].Scenario, 1, scenario.Result{Logs: map[string]string{"b": log, "a": "short\xff"}})
	if s.Logs[0] != (Log{"a", "short?"}) || len(s.Logs[1].Text) > maxLog+40 || !strings.HasPrefix(s.Logs[1].Text, "(the beginning is left out)\na line\n") {
		t.Errorf("%q ... %q", s.Logs[0], s.Logs[1].Text[:60])
	}
}
