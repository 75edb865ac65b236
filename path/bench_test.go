package path

import (
	"testing"
	"time"

	"weft"
	"weft/wire"
)

// A steady is an agent with a direct path, traffic both ways, and the peer's reports, observed every 100 ms.
type steady struct {
	*rig
	by      weft.Via
	rtts    map[weft.Via]time.Duration
	traffic []Traffic
	report  wire.PeerMessage
	line    []wire.PathReport
}

func newSteady(t *testing.T) *steady {
	r, by, rtts := onDirectPath(t)
	s := &steady{rig: r, by: by, rtts: rtts, traffic: []Traffic{{Via: by}, {Via: relayUDP, TxPackets: 3, RxPackets: 3}}}
	s.line = []wire.PathReport{{Path: r.find(by).number}}
	s.report = wire.Report{Paths: s.line}
	r.handle(by, wire.Ping{Path: 7, Tx: wire.TxID{1}})
	for range 100 {
		s.step()
		s.pong()
	}
	return s
}

// step is 100 ms of traffic.
func (s *steady) step() {
	c := &s.traffic[0]
	c.TxPackets, c.TxBytes = c.TxPackets+1000, c.TxBytes+1_200_000
	c.RxPackets, c.RxBytes = c.RxPackets+800, c.RxBytes+960_000
	s.now = s.now.Add(40 * time.Millisecond)
	s.line[0].Packets, s.line[0].Bytes = c.TxPackets, c.TxBytes
	s.Handle(s.now, s.by, s.report)
	s.Poll(s.now, &s.out)
	s.now = s.now.Add(60 * time.Millisecond)
	s.Observe(s.now, s.traffic)
	s.Poll(s.now, &s.out)
}

// pong answers the pings of the last step.
func (s *steady) pong() {
	for _, x := range s.out.Send {
		if m, ok := x.Message.(wire.Ping); ok {
			s.Handle(s.now, x.Via, wire.Pong{Path: m.Path, Tx: m.Tx})
		}
	}
}

func TestInSteadyTrafficNothingIsAllocated(t *testing.T) {
	s := newSteady(t)
	reports, asked := 0, 0
	// Pings, one in some seconds, may.
	if n := testing.AllocsPerRun(500, func() {
		s.step()
		s.pong()
		for _, x := range s.out.Send {
			if _, ok := x.Message.(wire.Report); ok {
				reports++
			} else {
				asked++
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations in 100 ms of steady traffic", n)
	}
	if reports < 500 {
		t.Errorf("%d reports in 500 steps", reports)
	}
	if asked < 8 || asked > 20 {
		t.Errorf("%d pings in 50 s of traffic that is reported: want one in 5 s, and a few for the relay", asked)
	}
	if s.Selected() != s.by {
		t.Errorf("no longer direct: %v", s.Snapshot(s.now).Reason)
	}
}

// BenchmarkSteady is what an agent costs in 100 ms of traffic: a report in, an observation, a report out.
func BenchmarkSteady(b *testing.B) {
	s := newSteady(new(testing.T))
	b.ReportAllocs()
	for b.Loop() {
		s.step()
		s.pong()
	}
}

// BenchmarkPollManyPairs is a Poll with as many pairs as there may be.
func BenchmarkPollManyPairs(b *testing.B) {
	s := newSteady(new(testing.T))
	var list []weft.Candidate
	for i := range wire.MaxCandidates {
		list = append(list, candidates(weft.Host, "203.0.113.77:1")...)
		list[i].Addr = addrPort(i)
	}
	s.SetRemote(s.now, list)
	s.play(30*time.Second, s.rtts)
	b.ReportAllocs()
	for b.Loop() {
		s.Poll(s.now, &s.out)
	}
}
