package scenario

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"weft"
)

// judged is what becomes of one expectation, given when paths changed, in seconds, and until when it was watched.
func judged(t *testing.T, expect string, until float64, changes ...any) (o Outcome, decided bool) {
	t.Helper()
	s, err := Parse("x", []byte(`server hub on=internet
router home on=internet nat=symmetric
host ann on=home
host bob on=internet
flow ann bob every=100ms
limit 60s
at 10s rebind home
at 20s forget home
at 30s rebind home
expect `+expect+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	var h History
	for i := 0; i < len(changes); i += 2 {
		h.Path(time.Duration(changes[i].(float64)*1e9), "bob", "ann", weft.PathKind(changes[i+1].(string)))
	}
	h.End = time.Duration(until * 1e9)
	list, decided := h.Judge(s, false)
	return list[0], decided
}

func TestAnExpectationOfAPathIsJudgedByWhatWasSeen(t *testing.T) {
	for _, c := range []struct {
		expect  string
		until   float64
		changes []any
		ok      bool
		decided bool
	}{
		{"ann bob direct within 5s", 3, []any{1.0, "relay", 2.0, "direct"}, true, true},
		{"ann bob direct within 5s", 3, []any{1.0, "relay"}, false, false},
		{"ann bob direct within 5s", 6, []any{1.0, "relay"}, false, true},
		{"ann bob direct within 5s", 9, []any{5.1, "direct"}, false, true},
		{"ann bob direct within 5s for 3s", 4, []any{2.0, "direct"}, false, false},
		{"ann bob direct within 5s for 3s", 5, []any{2.0, "direct"}, true, true},
		{"ann bob direct within 5s for 3s", 9, []any{2.0, "direct", 4.0, "relay"}, false, true},
		{"ann bob direct within 5s for 3s", 9, []any{2.0, "direct", 4.0, "relay", 4.5, "direct"}, true, true},
		{"ann bob direct within 5s for 3s", 9, []any{2.0, "direct", 4.0, "relay", 5.5, "direct"}, false, true},
		{"ann bob relay for 5s", 5, []any{1.0, "relay"}, true, true},
		{"ann bob relay for 5s", 4, []any{1.0, "relay"}, false, false},
		{"ann bob relay for 5s", 4, []any{1.0, "relay", 3.0, "direct"}, false, true},
		{"ann bob relay for 5s", 9, []any{1.0, "relay", 6.0, "direct"}, true, true},
		{"ann bob relay for 5s", 9, nil, false, true},
		{"ann bob relay for 5s", 2, nil, false, false},
		{"ann bob relay for 5s", 9, []any{1.0, "relay", 3.0, "none"}, false, true},
		{"ann bob none for 5s", 9, nil, true, true},
		{"ann bob none for 5s", 9, []any{4.0, "relay"}, false, true},
		{"ann bob stays direct for 5s through forget home", 25, []any{2.0, "direct"}, true, true},
		{"ann bob stays direct for 5s through forget home", 24, []any{2.0, "direct"}, false, false},
		{"ann bob stays direct for 5s through forget home", 30, []any{2.0, "direct", 24.0, "relay"}, false, true},
		{"ann bob stays direct for 5s through forget home", 30, []any{2.0, "relay", 20.5, "direct"}, false, true},
		{"ann bob stays direct for 5s through forget home", 30, []any{2.0, "direct", 8.0, "relay", 9.0, "direct", 26.0, "relay"}, true, true},
		{"ann bob direct within 2s after rebind home", 40, []any{2.0, "direct", 10.0, "relay", 11.0, "direct"}, true, true},
		{"ann bob direct within 2s after rebind home", 40, []any{2.0, "direct", 10.0, "relay", 11.0, "direct", 30.0, "relay"}, false, true},
		{"ann bob direct within 2s after rebind home", 31, []any{2.0, "direct", 30.0, "relay"}, false, false},
	} {
		o, decided := judged(t, c.expect, c.until, c.changes...)
		if ok := o.OK && decided; ok != c.ok || decided != c.decided {
			t.Errorf("%s, watched for %vs, with %v: %v (decided: %v), because %s", c.expect, c.until, c.changes, o.OK, decided, o.Why)
		}
	}
}

func TestWhatAFlowLosesIsCountedInItsWindow(t *testing.T) {
	s, err := Parse("x", []byte(`server hub on=internet
router home on=internet nat=symmetric
host ann on=home
host bob on=internet
flow ann bob every=100ms start=1s
limit 60s
at 10s rebind home
expect ann bob loses nothing
expect ann bob loses nothing for 5s through rebind home
expect ann bob silent at most 300ms
expect ann bob silent at most 200ms
`))
	if err != nil {
		t.Fatal(err)
	}
	f := FlowHistory{Flow: s.Flows[0], Sent: 590, Arrived: make([]time.Duration, 590)}
	for i := range f.Arrived {
		f.Arrived[i] = time.Second + time.Duration(i)*100*time.Millisecond + 20*time.Millisecond
	}
	verdicts := func(until time.Duration) string {
		h := History{End: until}
		h.SetFlows([]FlowHistory{f})
		list, decided := h.Judge(s, until == s.Duration())
		text := fmt.Sprint(decided)
		for _, o := range list {
			text += fmt.Sprint(" ", o.OK)
		}
		return text
	}
	if got := verdicts(60 * time.Second); got != "true true true true true" {
		t.Errorf("all arrived: %s", got)
	}
	for _, i := range []int{30, 31, 32, 50} { // three in a row, four in all, before the event
		f.Arrived[i] = 0
	}
	if got := verdicts(60 * time.Second); got != "true false true true false" {
		t.Errorf("some are lost before the event: %s", got)
	}
	f.Arrived[93] = 0 // sent at 10.3 s
	if got := verdicts(11 * time.Second); got != "false false true true false" {
		t.Errorf("it may be on its way yet: %s", got)
	}
	if got := verdicts(13 * time.Second); got != "false false false true false" {
		t.Errorf("it is lost: %s", got)
	}
	if r := (&History{End: 60 * time.Second, flows: []FlowHistory{f}}).Results()[0]; r.Lost != 5 || r.Sent != 590 || r.Silence != 300*time.Millisecond {
		t.Errorf("%+v", r)
	}
}

func TestAFlowIsSilentForAsLongAsNothingComes(t *testing.T) {
	s, err := Parse("x", []byte(`server hub on=internet
host ann on=internet
host bob on=internet
flow ann bob every=10ms
limit 60s
at 10s cut ann
expect ann bob silent at most 150ms for 5s through cut ann
expect ann bob loses at most 2 for 5s through cut ann
expect ann bob carries 79kbit within 200ms for 5s after cut ann
`))
	if err != nil {
		t.Fatal(err)
	}
	f := FlowHistory{Flow: s.Flows[0], Sent: 2000, Arrived: make([]time.Duration, 2000)}
	for i := range f.Arrived {
		f.Arrived[i] = time.Duration(i)*10*time.Millisecond + 20*time.Millisecond
	}
	verdicts := func() (text string) {
		h := History{End: 20 * time.Second}
		h.SetFlows([]FlowHistory{f})
		list, _ := h.Judge(s, false)
		for _, o := range list {
			text += fmt.Sprint(o.OK, " ", o.Why, "; ")
		}
		return text
	}
	if got := verdicts(); !strings.HasPrefix(got, "true 0 packets lost, no silence longer than 0s; true ") || !strings.HasSuffix(got, "true 0.080 Mbit/s from 10.2s to 15.2s; ") {
		t.Errorf("nothing happens: %s", got)
	}
	// What was sent from 10 s on waits, and comes at 10.16 s, the first two of it never and the others in disorder.
	for i := range 16 {
		f.Arrived[1000+i] = 10160*time.Millisecond + time.Duration(15-i)*time.Microsecond
	}
	f.Arrived[1000], f.Arrived[1001] = 0, 0
	if got := verdicts(); !strings.HasPrefix(got, "true 2 packets lost, no silence longer than 0.14s; true ") {
		t.Errorf("it comes late: %s", got)
	}
	h := History{End: 20 * time.Second, flows: []FlowHistory{f}}
	if r := h.Results()[0]; r.OutOfOrder != 13 || r.Rate < 79900 || r.Rate > 80100 {
		t.Errorf("%+v", r)
	}
	for i := range 200 {
		f.Arrived[1100+i] = 0
	}
	if got := verdicts(); !strings.HasPrefix(got, "false 202 packets lost, no silence longer than 2s; false ") || !strings.HasSuffix(got, "false 0.048 Mbit/s from 10.2s to 15.2s; ") {
		t.Errorf("two seconds of it are lost: %s", got)
	}
}

func TestALinkIsIdleIfItCarriesNextToNothing(t *testing.T) {
	s, err := Parse("x", []byte(`server hub on=internet
router lte on=internet nat=none
host ann on=internet,lte
host bob on=internet
limit 60s
at 10s cut ann.internet
expect lte idle for 5s
expect ann.lte idle for 5s after cut ann.internet
`))
	if err != nil {
		t.Fatal(err)
	}
	var h History
	for i := range 200 { // bytes: 4 kbit/s, and from 10 s on 1 Mbit/s
		at, bytes := time.Duration(i)*100*time.Millisecond, uint64(i*50)
		if i > 100 {
			bytes += uint64(i-100) * 12_500
		}
		h.Carried(at, "lte", bytes)
		h.Carried(at, "ann.lte", bytes)
		h.End = at
	}
	list, decided := h.Judge(s, false)
	if !decided || !list[0].OK || list[1].OK || list[0].Why != "0.004 Mbit/s from 0s to 5s" || list[1].Why != "1.004 Mbit/s from 10s to 15s" {
		t.Errorf("decided: %v, %+v", decided, list)
	}
	if _, decided := (&History{End: 4 * time.Second}).Judge(s, false); decided {
		t.Error("it is decided before the time is over")
	}
}

func TestWhoReachesWhomIsJudgedByTries(t *testing.T) {
	type tried struct {
		began, ended float64
		ok           bool
	}
	for _, c := range []struct {
		expect      string
		until       float64
		tries       []tried
		ok, decided bool
	}{
		{"ann reaches bob tcp:80 within 3s", 1, nil, false, false},
		{"ann reaches bob tcp:80 within 3s", 4, nil, false, true},
		{"ann reaches bob tcp:80 within 3s", 2, []tried{{0, 1, false}, {1, 1.1, true}}, true, true},
		{"ann reaches bob tcp:80 within 3s", 4, []tried{{0, 1, false}, {2.9, 3.1, true}}, false, true},
		{"ann reaches bob tcp:80 within 3s for 2s", 2, []tried{{0, 0.1, true}, {1, 1.1, true}}, false, false},
		{"ann reaches bob tcp:80 within 3s for 2s", 3, []tried{{0, 0.1, true}, {1, 1.1, true}, {2.5, 3, false}}, true, true},
		{"ann reaches bob tcp:80 within 3s for 2s", 6, []tried{{0, 0.1, true}, {1, 2, false}, {2.5, 2.6, true}, {3, 3.1, true}}, true, true},
		{"ann reaches bob tcp:80 within 3s for 2s", 6, []tried{{0, 0.1, true}, {1, 2, false}, {3, 3.5, true}}, false, true},
		{"ann reaches bob tcp:80 within 3s after rebind home", 50, []tried{{9.9, 10.1, true}, {10.2, 10.3, true}, {31, 32, true}}, true, true},
		{"ann reaches bob tcp:80 within 3s after rebind home", 50, []tried{{9.9, 10.1, true}, {31, 32, true}}, false, true},
		{"ann cannot reach bob tcp:80 for 3s", 4, nil, false, true},
		{"ann cannot reach bob tcp:80 for 3s", 2, []tried{{0, 1, false}}, true, false},
		{"ann cannot reach bob tcp:80 for 3s", 4, []tried{{0, 1, false}, {3.1, 3.2, true}}, true, true},
		{"ann cannot reach bob tcp:80 for 3s", 2, []tried{{0, 1, false}, {1, 1.1, true}}, false, true},
		{"ann cannot reach bob tcp:80 within 2s for 3s", 6, []tried{{1, 1.5, true}, {2, 3, false}}, true, true},
	} {
		s, err := Parse("x", []byte("server hub on=internet\nrouter home on=internet nat=symmetric\nhost ann on=home\nhost bob on=internet\n"+
			"at 10s rebind home\nat 30s rebind home\nexpect "+c.expect+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		var h History
		for _, x := range c.tries {
			h.Tried(s.Expect[0].Question(), time.Duration(x.began*1e9), time.Duration(x.ended*1e9), x.ok, "seen")
		}
		h.End = time.Duration(c.until * 1e9)
		o, decided := h.Judge(s, false)
		if decided != c.decided || decided && o[0].OK != c.ok {
			t.Errorf("%s until %v with %v: %v, decided %v (%s)", c.expect, c.until, c.tries, o[0].OK, decided, o[0].Why)
		}
	}
}
