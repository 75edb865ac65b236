package filter

import (
	"time"

	"weft"
)

// How long a flow is remembered without a packet.
const (
	tcpEstablished = 2*time.Hour + 4*time.Minute // RFC 5382 section 5
	tcpTransitory  = 4 * time.Minute             // likewise: while it begins, and once one side has ended
	tcpEnded       = 30 * time.Second            // for the last acknowledgements
	tcpReset       = 10 * time.Second            // for what was on its way
	udpSilent      = 5 * time.Minute             // RFC 4787 section 4.3
	icmpSilent     = time.Minute                 // RFC 5508 section 3.2
	otherSilent    = 10 * time.Minute            // as Linux keeps what it does not know (nf_conntrack_generic_timeout)
	fragmentsLast  = 30 * time.Second            // as Linux keeps fragments (ipfrag_time)
)

const (
	// mostOwn bounds what this node began, in flows; mostOther what each peer or guest did.
	mostOwn, mostOther = 16384, 2048
	// fresh is how long a flow's time is not written anew: within it, a packet changes nothing.
	fresh = time.Second
)

// A Verdict is whether a packet is let in, and else why not.
type Verdict uint8

// The verdicts.
const (
	Allowed     Verdict = iota
	NoRule              // nothing that was begun here, and no rule lets it begin
	Malformed           // headers that are not whole, or contradict themselves
	Fragment            // part of a packet whose beginning was not let in
	SourceRoute         // it says itself by which way it wants to go
	Unrelated           // an ICMP error about nothing that is known
	Entering            // it came from a network behind this node, which may begin nothing here
	verdicts
)

// Verdicts is how many there are.
const Verdicts = int(verdicts)

var verdictNames = [...]string{"allowed", "no_rule", "malformed", "fragment", "source_route", "unrelated", "entering"}

// String is the verdict as metrics name it.
func (v Verdict) String() string { return verdictNames[v] }

// key tells a flow: the address that is this node's or behind it, and the peer's.
type key struct {
	local, remote         addr
	localPort, remotePort uint16
	proto                 uint8
	what                  what
	id                    uint32 // of a fragment
}

type what uint8

const (
	flow what = iota
	fragmentIn
	fragmentOut
)

// A record is a flow, or a packet that comes in fragments.
type record struct {
	key     key
	account *account
	ours    bool // this side began it
	state   state
	policy  uint32        // the generation of rules that last allowed what the peer began
	end     int           // of the first fragment, in bytes
	until   time.Duration // when it is forgotten
	seen    time.Duration
	list    *list
	before  int32 // in its list
	after   int32
}

// state is TCP's, as far as answers need it.
type state uint8

const (
	asked    state = 1 << iota // this side, or the peer, has sent
	answered                   // the other has, too
	endedUs                    // FIN of this side
	endedPeer
	reset
)

// A list is records in the order of their last packets.
type list struct{ oldest, newest int32 }

// An account is what one party has begun. What is established is apart, and has to make room last.
type account struct {
	party   party
	n, most int
	passing list
	settled list
}

// A party is who has begun something.
type party struct {
	ours bool // from here
	id   weft.NodeID
}

// behindUs is the party of networks behind this node.
const behindUs = ^weft.NodeID(0)

// Flows is what is known of who began what. Its zero value knows nothing; one goroutine at a time may use it.
type Flows struct {
	index    map[key]int32
	records  []record // the first is none
	free     int32
	accounts map[party]*account
}

// Admit judges a packet that came from a peer. Generation is the policy's: another one for another policy.
func (f *Flows) Admit(now time.Duration, p *Policy, generation uint32, from weft.NodeID, k *Packet) Verdict {
	t := p.table(from)
	if k.fragment == later {
		return f.further(now, fragmentKey(k, fragmentIn), k)
	}
	if k.kind == reports {
		return f.report(now, p, t, k)
	}
	v := f.judge(now, p, generation, from, t, k)
	if v == Allowed && k.fragment == first {
		f.begun(now, party{id: from}, fragmentKey(k, fragmentIn), k)
	}
	return v
}

func (f *Flows) judge(now time.Duration, p *Policy, generation uint32, from weft.NodeID, t *table, k *Packet) Verdict {
	x := key{local: k.dst, remote: k.src, localPort: k.dport, remotePort: k.sport, proto: k.proto}
	r := f.find(now, x)
	if r != nil && r.ours {
		if k.kind != begins {
			f.heard(now, r, k, false)
			return Allowed
		}
		if p.allows(t, k.src, k.dst, k.proto, k.port()) {
			return Allowed
		}
		return NoRule
	}
	if r != nil && r.policy == generation && r.account.party.id == from || p.allows(t, k.src, k.dst, k.proto, k.port()) {
		if r == nil {
			r = f.open(now, party{id: from}, x)
		}
		if r.account.party.id == from {
			r.policy = generation
		}
		f.heard(now, r, k, false)
		return Allowed
	}
	return NoRule
}

// report judges an ICMP error: about something between its destination and an address that its sender speaks for.
func (f *Flows) report(now time.Duration, p *Policy, t *table, k *Packet) Verdict {
	q := &k.about
	if q.src != k.dst || !within(t.speaks, q.dst.netip()) {
		return Unrelated
	}
	r := f.find(now, key{local: q.src, remote: q.dst, localPort: q.sport, remotePort: q.dport, proto: q.proto})
	if r == nil || !r.ours && !p.allows(t, q.dst, q.src, q.proto, portOf(q.proto, q.sport)) {
		return Unrelated
	}
	return Allowed
}

func portOf(proto uint8, port uint16) uint16 {
	if proto == weft.ProtoICMP || proto == weft.ProtoICMPv6 {
		return 0
	}
	return port
}

// Send notes a packet that goes to a peer, and says whether it may. What cannot be read goes: this side is not judged for what it
// sends itself.
func (f *Flows) Send(now time.Duration, p *Policy, k *Packet) Verdict {
	who, own := p.sender(k.src)
	if k.fragment == later {
		if own {
			return Allowed
		}
		return f.further(now, fragmentKey(k, fragmentOut), k)
	}
	if k.kind == reports {
		q := &k.about
		if own || f.find(now, key{local: q.dst, remote: q.src, localPort: q.dport, remotePort: q.sport, proto: q.proto}) != nil {
			return Allowed
		}
		return Unrelated
	}
	v := f.note(now, p, who, own, k)
	if v == Allowed && k.fragment == first && !own {
		f.begun(now, party{ours: true, id: who}, fragmentKey(k, fragmentOut), k)
	}
	return v
}

// note finds the flow of an outgoing packet, or opens it.
func (f *Flows) note(now time.Duration, p *Policy, who weft.NodeID, own bool, k *Packet) Verdict {
	x := key{local: k.src, remote: k.dst, localPort: k.sport, remotePort: k.dport, proto: k.proto}
	r := f.find(now, x)
	heard := state(0) // before
	switch {
	case r != nil && !r.ours && own && k.kind == begins && k.proto == weft.ProtoTCP: // a connection of ours where there was one of theirs
		f.drop(r)
		r, heard = nil, answered
	case r != nil:
		f.heard(now, r, k, true)
		return Allowed
	}
	if !own {
		// What a peer, let in a moment ago, sends through this node.
		through := f.find(now, key{local: k.dst, remote: k.src, localPort: k.dport, remotePort: k.sport, proto: k.proto})
		switch {
		case through != nil && !through.ours:
			who = through.account.party.id
		case !within(p.enter, k.src.netip()): // an answer may be to what came in by another router of the network
			return Entering
		}
	}
	if k.kind == answers {
		return Allowed
	}
	r = f.open(now, party{ours: true, id: who}, x)
	r.state = heard
	f.heard(now, r, k, true)
	return Allowed
}

// sender is on whose account a source sends: this node's, a guest's, or that of the networks behind. Own are the first two.
func (p *Policy) sender(src addr) (who weft.NodeID, own bool) {
	if id, ok := p.guests[src]; ok {
		return id, true
	}
	if a := src.netip(); p.isOwn(a) || a == p.service {
		return 0, true
	}
	return behindUs, false
}

func fragmentKey(k *Packet, w what) key { return key{local: k.dst, remote: k.src, id: k.id, what: w} }

// begun remembers the first fragment of a packet.
func (f *Flows) begun(now time.Duration, who party, x key, k *Packet) {
	r := f.find(now, x)
	if r == nil {
		r = f.open(now, who, x)
	}
	r.end, r.until = k.at, now+fragmentsLast
}

// further judges a fragment that is not the first: that has been let in, and this one does not change it.
func (f *Flows) further(now time.Duration, x key, k *Packet) Verdict {
	if r := f.find(now, x); r == nil || k.at < r.end {
		return Fragment
	}
	return Allowed
}

// heard takes a packet of a flow into account.
func (f *Flows) heard(now time.Duration, r *record, k *Packet, out bool) {
	s := r.state
	if out == r.ours {
		s |= asked
	} else {
		s |= answered
	}
	if k.proto == weft.ProtoTCP {
		switch {
		case k.flags&flagRST != 0:
			s |= reset
		case k.kind == begins: // anew; answers of a moment ago may let others pass unseen (Cache), so there need be no more
			s = asked | s&answered
		case k.flags&flagFIN != 0 && out:
			s |= endedUs
		case k.flags&flagFIN != 0:
			s |= endedPeer
		}
	}
	if s == r.state && (now-r.seen < fresh || !out && r.ours && k.proto != weft.ProtoTCP) {
		return // what the peer sends alone does not keep the door open (RFC 4787 section 4.3, REQ-6)
	}
	moved := s&answered != 0 && s&(endedUs|endedPeer|reset) == 0
	r.state, r.seen = s, now
	r.until = now + lasts(k.proto, s)
	f.unlink(r)
	if moved {
		f.link(r, &r.account.settled)
	} else {
		f.link(r, &r.account.passing)
	}
}

// lasts is how long a flow is remembered.
func lasts(proto uint8, s state) time.Duration {
	switch proto {
	case weft.ProtoTCP:
		switch {
		case s&reset != 0:
			return tcpReset
		case s&endedUs != 0 && s&endedPeer != 0:
			return tcpEnded
		case s&(endedUs|endedPeer) != 0, s&answered == 0:
			return tcpTransitory
		}
		return tcpEstablished
	case weft.ProtoUDP, protoUDPLite:
		return udpSilent
	case weft.ProtoICMP, weft.ProtoICMPv6:
		return icmpSilent
	}
	return otherSilent
}

// find finds a record that still counts.
func (f *Flows) find(now time.Duration, x key) *record {
	i, ok := f.index[x]
	if !ok {
		return nil
	}
	r := &f.records[i]
	if now >= r.until {
		f.drop(r)
		return nil
	}
	return r
}

// open makes a record, of which there is none, and room for it.
func (f *Flows) open(now time.Duration, who party, x key) *record {
	if f.index == nil {
		f.index, f.accounts, f.records = make(map[key]int32), make(map[party]*account), make([]record, 1, 16)
	}
	a := f.accounts[who]
	if a == nil {
		a = &account{party: who, most: mostOther}
		if who == (party{ours: true}) {
			a.most = mostOwn
		}
	}
	f.expire(now, a)
	if a.n >= a.most {
		oldest := a.passing.oldest
		if oldest == 0 {
			oldest = a.settled.oldest
		}
		f.drop(&f.records[oldest])
	}
	f.accounts[who] = a // it may have become empty meanwhile
	i := f.free
	if i != 0 {
		f.free = f.records[i].after
	} else {
		i = int32(len(f.records))
		f.records = append(f.records, record{})
	}
	f.index[x] = i
	a.n++
	r := &f.records[i]
	*r = record{key: x, account: a, ours: who.ours, seen: now, until: now + tcpTransitory}
	f.link(r, &a.passing)
	return r
}

// expire forgets what is over among the oldest of an account: two for each that comes are enough to get ahead.
func (f *Flows) expire(now time.Duration, a *account) {
	for range 2 {
		for _, l := range [...]*list{&a.passing, &a.settled} {
			if i := l.oldest; i != 0 && now >= f.records[i].until {
				f.drop(&f.records[i])
			}
		}
	}
}

// drop forgets a record. An account without records goes, too.
func (f *Flows) drop(r *record) {
	i := f.index[r.key]
	delete(f.index, r.key)
	f.unlink(r)
	if r.account.n--; r.account.n == 0 {
		delete(f.accounts, r.account.party)
	}
	*r = record{after: f.free}
	f.free = i
}

func (f *Flows) link(r *record, l *list) {
	i := f.index[r.key]
	r.list, r.before, r.after = l, l.newest, 0
	if l.newest != 0 {
		f.records[l.newest].after = i
	} else {
		l.oldest = i
	}
	l.newest = i
}

func (f *Flows) unlink(r *record) {
	l := r.list
	if r.before != 0 {
		f.records[r.before].after = r.after
	} else {
		l.oldest = r.after
	}
	if r.after != 0 {
		f.records[r.after].before = r.before
	} else {
		l.newest = r.before
	}
}
