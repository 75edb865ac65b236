package path

import (
	"net/netip"
	"time"

	"weft"
	"weft/wire"
)

// Actions is what an Agent wants done. Its slices are used again by the next Poll, and so is what the messages
// point to.
type Actions struct {
	Send []Transmit
	// Open asks for further UDP sockets, whose numbers Agent.Opened is to be told; none while Count is zero.
	Open Opening
	// Close are sockets that Opened told of and that are no longer needed.
	Close []weft.LinkID
	// Dial are TCP connections that are wanted: what becomes of each is told by SetConnections, or by Dialed. Hang are
	// connections that are to be closed.
	Dial []Dial
	Hang []weft.Via
	// Learn are underlay addresses that turned out to be the peer's, Forget those that no longer are.
	Learn, Forget []netip.AddrPort
	// MTUs are how long packets may be by ways that are in use, or may soon be; of the way in use it is always told.
	MTUs []MTU
	// Bond are the ways that a bond may send by, and BondChanged says that they, or their metrics, are others than at the last
	// Poll; MemberChanges says why.
	Bond          []Member
	BondChanged   bool
	MemberChanges []MemberChange
	// Switches are changes of the way in use since the last Poll, in order.
	Switches []Switch
	// Next is when to call Poll again if nothing happens before; zero: there is nothing to wait for.
	Next time.Time
}

// A Transmit is a message for the peer, to be sealed and sent by a way.
type Transmit struct {
	Via     weft.Via
	Message wire.PeerMessage
	// TTL is the IP header's time to live, or hop limit, of a direct one; zero: the system's.
	TTL uint8
	// Whole wants it sent in one piece or not at all. If this machine cannot, Agent.TooLong is to be told.
	Whole bool
}

// FirstSpare is the first number of the links of sockets that Actions.Open asked for; no other link has one as
// high.
const FirstSpare weft.LinkID = 0x8000

// An Opening is a wish for UDP sockets of one address family, each on a free port and a link of its own, for
// this peer alone.
type Opening struct {
	Count int
	V6    bool
	Link  weft.LinkID // that they are to leave by; 0: none in particular
	// Ask wants a STUN server asked from the first of them, before anything else is sent by it, so that the
	// outside port that a NAT gave last is known.
	Ask bool
}

// An Opened is one socket that was asked for.
type Opened struct {
	Link   weft.LinkID
	Port   uint16         // its own, on this machine
	Mapped netip.AddrPort // where STUN saw it; zero: not asked, or no answer
}

// pollGap is the shortest time that Poll asks to be called again after: a millisecond, below which timers are
// not exact anyway.
const pollGap = time.Millisecond

// Poll does all that is due and fills out. Call it after every other call, and at out.Next.
func (a *Agent) Poll(now time.Time, out *Actions) {
	out.Send = append(out.Send[:0], a.pending.send...)
	a.pending.send = a.pending.send[:0]
	out.Switches = out.Switches[:0]
	out.Open = Opening{}
	if !a.asked.IsZero() && now.Sub(a.asked) > lateBy {
		a.behind = now
	}
	a.next = time.Time{}

	a.mind(now)
	a.watch(now)
	a.judge(now)
	a.choose(now, out)
	a.assemble(now, out)
	a.note(now)
	a.fit(now, out)
	a.rounds(now)
	a.attend(now, out)
	a.call(now, out)
	a.connect(now, out)
	a.ping(now, out)
	a.report(now, out)

	for _, m := range a.pending.say {
		a.sayBy(out, m)
	}
	a.pending.say = a.pending.say[:0]
	out.Learn = append(out.Learn[:0], a.pending.learn...)
	out.Forget = append(out.Forget[:0], a.pending.forget...)
	a.pending.learn, a.pending.forget = a.pending.learn[:0], a.pending.forget[:0]
	out.Close = append(out.Close[:0], a.pending.close...)
	a.pending.close = a.pending.close[:0]
	out.Next = a.next
	if soonest := now.Add(pollGap); !a.next.IsZero() && a.next.Before(soonest) {
		out.Next = soonest
	}
	a.asked = out.Next
}

// mind notices that a path is wanted again, or no longer.
func (a *Agent) mind(now time.Time) {
	was := a.wanted
	a.wanted = a.wants(now)
	if a.inUse(now) {
		a.wake(a.used.Add(UnusedAfter))
	}
	switch {
	case a.wanted && !was:
		a.sweep(now)
		a.changed(now)
	case was && !a.wanted:
		a.exchange.rest()
		a.campaign.rest()
	}
}

// wake asks for Poll to be called at t.
func (a *Agent) wake(t time.Time) {
	if !t.IsZero() && (a.next.IsZero() || t.Before(a.next)) {
		a.next = t
	}
}

// due reports whether t has come, and asks to be called then if it has not. The zero time never comes.
func (a *Agent) due(now, t time.Time) bool {
	if t.IsZero() {
		return false
	}
	if now.Before(t) {
		a.wake(t)
		return false
	}
	return true
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
