package scenario

import (
	"fmt"
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
