package bond

import (
	"slices"
	"time"

	"weft/wire"
)

// A SenderConfig is fixed for a Sender's life.
type SenderConfig struct {
	Control func() Control // congestion control, one for each path; nil: the default, NewBBR
	Memory  int            // bytes of copies; 0: DefaultMemory
}

// A Sender is the sending half of a bond with one peer. Make it with [NewSender]; one goroutine at a time may use it.
type Sender struct {
	cfg    SenderConfig
	lanes  []*lane // the paths of SetPaths, in their order
	ledger ledger
	repeat []uint64 // places of messages to be sent again, a heap: the oldest first
	remote remote   // the receiver's clock
	data   uint64   // the place of the newest message with data in it that was sent

	last     *lane // the one that Next gave
	explore  *lane // that is to have a copy, so that more is known of it
	assign   *lane // by which what Next has no path for goes later
	run      *lane // that Due gives several of
	nap      nap
	standing extreme       // bytes that waited in front lately, at least
	now      time.Duration // the latest that was given
	wake     time.Duration // when Next or Again may do what they could not
	due      time.Duration // when a timer of a path is
	slept    time.Duration // until when a timer is not taken for late
	eased    time.Duration // until when the queue in front may be long
	less     time.Duration // when a path had gone last; 0: none has
	events   []Event
	ignored  uint64 // feedback that cannot be
}

// NewSender returns a Sender without paths.
func NewSender(cfg SenderConfig) *Sender {
	if cfg.Control == nil {
		cfg.Control = NewBBR
	}
	if cfg.Memory <= 0 {
		cfg.Memory = DefaultMemory
	}
	return &Sender{cfg: cfg, ledger: newLedger(cfg.Memory), nap: nap{turn: Never}, wake: Never, due: Never}
}

// SetPaths says which paths live, by who probes them. What was sent by one that is gone goes again at once by others.
func (s *Sender) SetPaths(now time.Duration, list []Path) {
	first := len(s.lanes) == 0
	list = list[:min(len(list), wire.MaxBondPaths)]
	for i := len(s.lanes) - 1; i >= 0; i-- {
		l := s.lanes[i]
		at := slices.IndexFunc(list, func(p Path) bool { return p.ID == l.ID })
		if at >= 0 {
			shorter := list[at].RTT < l.RTT
			if l.Path = list[at]; shorter && !l.est.owd.some {
				l.restart(now)
			}
			continue
		}
		s.lanes = slices.Delete(s.lanes, i, i+1)
		s.abandon(now, l)
		if s.last == l {
			s.last = nil
		}
		if s.explore == l {
			s.explore = nil
		}
		s.assign, s.run = nil, nil
	}
	for _, p := range list {
		if s.lane(p.ID) == nil {
			s.lanes = append(s.lanes, s.admit(now, p, first))
		}
	}
	s.now = max(s.now, now)
	s.rank(now)
	s.rearm(now)
	s.wake = now
}

// admit makes a lane for a path.
func (s *Sender) admit(now time.Duration, p Path, first bool) *lane {
	l := &lane{Path: p, ctl: s.cfg.Control(), free: now}
	for slices.ContainsFunc(s.lanes, func(o *lane) bool { return o.slot == l.slot }) {
		l.slot++
	}
	l.restart(now)
	l.health = health{state: Active, reason: "it is up", since: now, due: Never}
	if !first {
		l.health.state, l.health.reason = Returning, "it is up, and has to prove itself"
		s.event(now, l, Silent, Returning)
	}
	return l
}

func (s *Sender) lane(id PathID) *lane {
	for _, l := range s.lanes {
		if l.ID == id {
			return l
		}
	}
	return nil
}

func (s *Sender) laneAt(slot uint8) *lane {
	for _, l := range s.lanes {
		if l.slot == slot {
			return l
		}
	}
	return nil
}

// Sent is told of each new message, and keeps a copy.
func (s *Sender) Sent(now time.Duration, p PathID, session uint32, counter uint64, message []byte) {
	s.sent(now, p, session, counter, message, false)
}

// SentControl is told of a message that carries nothing for the peer's people: a frame of weft's, a keepalive. It is kept like others,
// since the receiver waits for each counter. But the receiver does not answer for its sake, so nothing is concluded from its silence.
func (s *Sender) SentControl(now time.Duration, p PathID, session uint32, counter uint64, message []byte) {
	s.sent(now, p, session, counter, message, true)
}

// SentName is told of an offer, which says its path's number: a message of weft's own like others, but see Again.
func (s *Sender) SentName(now time.Duration, p PathID, session uint32, counter uint64, message []byte) {
	s.sent(now, p, session, counter, message, true)
	if seq, ok := s.ledger.seq(session, counter); ok {
		s.ledger.msg(seq).names = true
	}
}

func (s *Sender) sent(now time.Duration, p PathID, session uint32, counter uint64, message []byte, quiet bool) {
	l := s.lane(p)
	seq, ok := s.ledger.add(session, counter, s.drop)
	if !ok {
		return
	}
	m := s.ledger.msg(seq)
	if l == nil { // gone since Next
		m.settled = true
		return
	}
	m.quiet = quiet
	s.ledger.keep(m, message)
	s.hop(now, l, seq, m, len(message), quiet)
}

// SentCopy is told of the same message by another path.
func (s *Sender) SentCopy(now time.Duration, p PathID, session uint32, counter uint64, size int) {
	l := s.lane(p)
	seq, ok := s.ledger.seq(session, counter)
	if l == nil || !ok {
		return
	}
	if m := s.ledger.msg(seq); !m.settled && m.n < hopsMost {
		for _, h := range m.hops[:m.n] {
			if _, f := s.flight(h, seq); f != nil {
				f.twin = true
			}
		}
		s.hop(now, l, seq, m, size, m.quiet)
		l.flights.at(l.flights.head - 1).twin = true
	}
}

// hop notes one sending of a message.
func (s *Sender) hop(now time.Duration, l *lane, seq uint64, m *message, size int, quiet bool) {
	m.hops[m.n] = hop{slot: l.slot, flight: l.sent(now, s.nap.credit(), seq, size, quiet)}
	m.n++
	if !quiet {
		s.data = max(s.data, seq)
	}
	if l.health.due == Never && !quiet {
		l.health.due = now + l.patience()
		s.due = min(s.due, l.health.due)
	}
}

// flight finds the flight of a hop, if it is still remembered.
func (s *Sender) flight(h hop, seq uint64) (*lane, *flight) {
	l := s.laneAt(h.slot)
	if l == nil || !l.flights.has(h.flight) {
		return nil, nil
	}
	f := l.flights.at(h.flight)
	if f.seq != seq {
		return nil, nil // of another path that had the slot
	}
	return l, f
}

// drop forgets a message that has not been reported: there is no room for it.
func (s *Sender) drop(seq uint64) {
	m := s.ledger.msg(seq)
	for _, h := range m.hops[:m.n] {
		if l, f := s.flight(h, seq); f != nil {
			l.forget(h.flight)
		}
	}
	m.settled = true
}

// Status appends how each path does.
func (s *Sender) Status(dst []PathStatus) []PathStatus {
	all := 0.0
	for _, l := range s.lanes {
		all += l.counts.lately
	}
	for _, l := range s.lanes {
		p := PathStatus{
			ID: l.ID, State: l.health.state, Reason: l.health.reason, Metric: l.Metric,
			RTT: l.est.rtt.smooth, MinRTT: l.est.minRTT, Rate: l.est.rate, Loss: l.est.loss,
			InFlight: l.inFlight, Window: l.window(s.remote.gap()),
			SentPackets: l.counts.sentPackets, SentBytes: l.counts.sentBytes,
			LostPackets: l.counts.lostPackets, AgainPackets: l.counts.againPackets,
		}
		if all > 0 {
			p.Share = l.counts.lately / all
		}
		dst = append(dst, p)
	}
	return dst
}

// eventsMost is how many are kept until they are asked for.
const eventsMost = 64

func (s *Sender) event(now time.Duration, l *lane, from, to State) {
	if len(s.events) == eventsMost {
		s.events = slices.Delete(s.events, 0, 1)
	}
	s.events = append(s.events, Event{At: now, Path: l.ID, From: from, To: to, Reason: l.health.reason})
}

// Events appends the changes of state since last asked.
func (s *Sender) Events(dst []Event) []Event {
	dst = append(dst, s.events...)
	s.events = s.events[:0]
	return dst
}
