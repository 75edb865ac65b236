package path

import (
	"testing"
	"time"
)

// An account is a ledger under test, with a clock.
type account struct {
	ledger
	t   *testing.T
	now time.Time
}

func newAccount(t *testing.T) *account {
	return &account{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func (a *account) pass(ms int) { a.now = a.now.Add(time.Duration(ms) * time.Millisecond) }

func (a *account) send(packets uint64) { a.add(a.now, packets, packets*100) }

func (a *account) report(packets uint64) bool {
	return a.acknowledge(a.now, packets, 50*time.Millisecond)
}

func (a *account) expect(what string, outstanding uint64) {
	a.t.Helper()
	if got := a.outstanding(); got != outstanding {
		a.t.Errorf("%s: %d outstanding, want %d", what, got, outstanding)
	}
}

func TestWhatWasSentBeforeAReportOfMoreIsCovered(t *testing.T) {
	a := newAccount(t)
	a.send(10)
	a.expect("sent", 10)
	a.pass(60)
	if !a.report(8) {
		t.Error("a first report of 8 is no progress")
	}
	a.expect("8 of 10 arrived, so 2 are lost", 0)
	a.pass(40)
	a.send(5) // some of them may be what was reported
	a.expect("seen just after the report", 0)
	a.pass(100)
	a.send(5)
	a.expect("seen later", 5)
	a.pass(100)
	if a.report(8) {
		t.Error("the same report again is progress")
	}
	a.expect("the same report again", 5)
}

func TestPacketsAreOverdueWhenNothingWasAcknowledgedSince(t *testing.T) {
	a := newAccount(t)
	begin := a.now
	a.send(2)
	if at := a.overdue(3, time.Second); !at.IsZero() {
		t.Errorf("2 packets are 3 at %v", at)
	}
	a.pass(100)
	a.send(2)
	if got := a.overdue(3, time.Second).Sub(begin); got != 1100*time.Millisecond {
		t.Errorf("overdue after %v, want 1 s after the third was seen", got)
	}
	if got := a.since().Sub(begin); got != 0 {
		t.Errorf("outstanding since %v, want the first", got)
	}
	a.report(1)
	a.pass(10)
	a.send(0)
	a.pass(90)
	a.send(4)
	if got := a.overdue(3, time.Second).Sub(begin); got != 1200*time.Millisecond {
		t.Errorf("overdue after %v, want 1 s after those that were sent after the report", got)
	}
}

func TestNewsOfThePastIsNoSignOfLife(t *testing.T) {
	a := newAccount(t)
	for i := range uint64(10) {
		a.send(10)
		a.pass(60)
		a.report(10*i + 8)
		a.pass(40)
	}
	alive := a.progress
	for range 5 { // it dies
		a.send(10)
		a.pass(100)
	}
	a.expect("dead", 40) // ten were seen just after the last report
	if !a.report(103) {
		t.Error("more arrived, and that is not said")
	}
	if a.progress != alive {
		t.Error("five late packets count as a sign of life")
	}
	a.expect("dead all the same", 40)
	a.pass(100)
	a.send(10)
	a.report(113)
	if a.progress != a.now {
		t.Error("a report as usual does not count")
	}
	a.expect("alive again", 0)
}

func TestACountThatBecomesSmallerIsFirstTakenForAnOldReport(t *testing.T) {
	a := newAccount(t)
	a.send(100)
	a.report(100)
	a.pass(100)
	a.send(0)
	a.pass(100)
	a.send(10)
	a.report(90)
	a.expect("an overtaken report", 10)
	a.report(92)
	a.report(94)
	a.expect("a peer that has lost count", 0)
	if !a.report(95) {
		t.Error("its new count is not followed")
	}
}

func TestOldPacketsAreWrittenOff(t *testing.T) {
	a := newAccount(t)
	a.send(2)
	a.pass(int(writeOff/time.Millisecond) - 100)
	a.send(1)
	a.expect("just before", 3)
	a.pass(200)
	a.send(0)
	a.expect("just after", 1)
}

func TestFrequentObservationsDoNotPushOutThePast(t *testing.T) {
	a := newAccount(t)
	begin := a.now
	for range 200 {
		a.send(1)
		a.pass(10)
	}
	if got := a.since().Sub(begin); got > 100*time.Millisecond {
		t.Errorf("2 s of packets are outstanding since %v after the first", got)
	}
}

func TestLossIsMeasuredOfSteadyFlowsAndNotOfRaggedOnes(t *testing.T) {
	a := newAccount(t)
	arrived := uint64(0)
	flow := func(seconds int, every100ms uint64, lost float64) {
		for range 10 * seconds {
			a.send(every100ms)
			arrived += uint64(float64(every100ms) * (1 - lost))
			a.pass(70)
			a.report(arrived)
			a.pass(30)
		}
	}
	flow(12, 100, 0)
	if rate, ok := a.loss.fresh(a.now); !ok || rate > 0.01 {
		t.Errorf("no loss is measured as %.3f, %v", rate, ok)
	}
	flow(20, 100, 0.2)
	if rate, ok := a.loss.fresh(a.now); !ok || rate < 0.18 || rate > 0.22 {
		t.Errorf("20 %% of loss are measured as %.3f, %v", rate, ok)
	}
	if a.loss.bad < badWindows {
		t.Errorf("%d bad windows in 20 s of 20 %% loss", a.loss.bad)
	}
	flow(11, 100, 0)
	if a.loss.bad != 0 {
		t.Error("a path that has become good is still bad")
	}
	before := a.loss.at
	for range 20 { // a burst in every five seconds, reported in the middle of it
		a.send(500)
		arrived += 250
		a.pass(20)
		a.report(arrived)
		arrived += 250
		a.pass(80)
		a.report(arrived)
		a.pass(2400)
		a.send(0)
		a.pass(2500)
	}
	if rate := a.loss.rate; a.loss.at != before && rate > 0.05 {
		t.Errorf("bursts without loss are measured as %.3f", rate)
	}
	a.pass(int(lossMemory / time.Millisecond))
	if _, ok := a.loss.fresh(a.now); ok {
		t.Error("an old measurement is taken for fresh")
	}
}
