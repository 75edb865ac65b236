// Package path finds the ways to one peer and picks the one in use. It is pure: it has no sockets and no clock.
// An [Agent] is told what is so (addresses, relays, messages that came, how much data flowed by which way) and
// answers with what to send, which way is in use, and when to ask it again. One goroutine owns an Agent.
//
// # Ways
//
// Each way to the peer is a pair: a direct one is a link of ours and an address of the peer's, a relayed one is
// a relay and how it is spoken to. Direct pairs are all links times all addresses that the peer announces, the
// coordinator knows of, or an authenticated message came from (peer reflexive, RFC 8445 section 7.3.1.3). Their
// number is bounded, whatever is sent here.
//
// A relayed pair is usable as soon as it is listed: traffic flows from the first packet, before anything was
// answered. A direct one is usable once a ping of ours was answered on it, which shows that both directions
// carry packets and that the peer knows our address there. Answers count for the exact pair alone: one that
// comes from elsewhere proves nothing of the address that was asked (RFC 8445 section 7.2.5.2.1), but makes a
// pair of where it came from, which is asked in turn. A relay hides by which of its two manners the peer is
// connected, so through a relay an answer counts if it came through the same relay.
//
// # Finding
//
// Both sides tell each other their candidates through every relay, repeat it until they hear back, and then
// probe all pairs in rounds ([RoundInterval]) for some seconds. A ping that comes in is answered where it came
// from and, if the pair is not known good, answered by a ping: so it does not matter who begins, nor that first
// packets are eaten by a filter that was not open yet. Rounds that find nothing are repeated, each
// time with a call through the relay so that both sides send at once. The pauses are a share of the time that it
// has been in vain, so that what cannot work costs next to nothing, and what works again is found soon. They
// begin anew when something changes: either side's addresses, the network, a relay's UDP that answers again, or
// the wish for a path after it was unused. Nothing is probed for a peer to which nobody talks, unless it is to
// be kept warm (Config.Eager).
//
// Some NATs are spoiled by a packet that comes from where nothing was sent to yet: what is sent there later leaves
// by another port. So what goes to an address of the peer's NAT first is an opener: a ping with a time to live that
// opens our NAT's filter and ends before the peer's ([OpenerTTL]). Candidates say which of the other side's the
// sender has; as soon as the peer has our latest, it is sending to them as well, and ours may arrive. Without word of
// that, they do so after 300 ms.
//
// # Attempts
//
// Of the 81 pairs of NATs in RFC 4787's terms, 57 are got through plainly. Where the two NATs, which both sides tell
// each other, do not allow that, or it did not work, the side that leads (Config.Leads) plans attempts: planFor,
// which says by what rules. It proposes one at a time by an [wire.Attempt] through the relays, the other agrees or
// not, and either ends it. An attempt is named by both sides' sessions and a number that grows, so that late and
// repeated frames mean nothing. Plain punching is given its time first: a fraction of a second where the NATs do not
// allow it; a second where one of them has another port for every destination, and what it does otherwise is still
// being found out; three else, and while a spray would disturb who finds out how ports are chosen.
//
// In a spray, the opener opens 256 sockets towards the prober's address, and the prober sends to ports of the
// opener's at random, from one socket, until one of them is one of the 256: on average after 250. That takes an
// opener whose filter looks at the address alone, or a prober whose outside port is known: 20 pairs more. Ports that
// the opener can tell, because its NAT preserves them or gives them in order, are tried first. In a prediction, both
// sides' NATs give ports in order or preserve them, and both send to the other's next ports in turn, so that the
// k-th packets of both meet: the last 4 pairs. The probes are pings, and what answers becomes a pair as any other
// address does that a message came from; the first pair that is validated ends the attempt, and all sockets but
// those that carry a pair are closed.
//
// The peer may be hostile, and may have us send thousands of packets. They go only to addresses at which relays of
// the network saw the peer ([Agent.SetAttested]) or where it answered a ping, whatever it says; there are no more of
// them a second than [Budget] allows, one peer at a time, nor for one peer more than [Allowance]; and no more than
// [MaxSockets] sockets are open for it. What fails is tried again after minutes, and then hours, and then no more
// until something changes. Between NATs where no guess can help, nothing is sent at all.
//
// # Losing
//
// A path may answer pings and lose data, so data is what it is judged by. The receiver of data reports, per
// path, what has come ([wire.Report]). The sender keeps a ledger: at least three packets, each older than the
// report can reasonably take, with nothing acknowledged since, and the path has failed; traffic goes on by the
// best other way in the same moment. Before that, and for one or two packets, pings in quick succession find
// out about a path that is wholly dead. A failed path has to prove itself with several answers, and to go on answering
// for a time that doubles with each relapse; one that answered pings while it lost data sits out longer. Who is short of
// processor time, here or there, looks like a dead path: a silence counts when the peer has answered by another way
// meanwhile, and when what it said can have been read. Reports
// name all paths and reach the sender by whichever way works, so a path whose data came through while its
// reports were lost is told from one that lost data.
//
// When nothing answers, the peer is gone: the relayed way stays selected and nothing moves until something is
// heard.
//
// # Choosing
//
// [Score] orders the pairs: what works, then direct before relayed, then what is faster in bands, nearer, IPv6.
// Moving to a better class of path is immediate; between two that both work it takes a clear and lasting
// advantage. A direct path that is far slower than the relay, or loses much that the relay would not, loses its
// place like one that failed. Moving changes only where we send; what arrives by any pair is always taken, so
// nothing is lost by moving.
//
// # TCP
//
// Some networks let no UDP through, or spoil it, and let TCP through. Where two links have no direct way over UDP, and the peer says
// that it takes TCP at an address of its own ([weft.Candidate]), the agent asks for a connection ([Actions.Dial]); it is a
// pair as long as it is up ([Agent.SetConnections]), usable once a ping was answered. UDP has two seconds to itself
// before, and is looked for all the same: when it works it takes over, and the connection is closed a minute later. What
// fails is tried again after seconds, and then minutes. No more connections are made than give each link one direct way.
//
// A connection is better than a relay, even one over UDP: it takes the shortest way, costs nobody else, and needs nobody who
// might be gone. It is worse than UDP: one lost packet holds up all behind it until it was sent again, whose they may be;
// and TCP inside TCP has two that repeat and slow down (Honda et al., 2005). So its place is between the two.
//
// # Lengths
//
// How long packets may be by a way is found by pings of that length that nobody may make fragments of (RFC 8899,
// [Config.MTU]): first the longest, then those that are likely, then those between what was answered and what was not. An
// Ethernet answers the first. Until something is known, [AssumedMTU] holds, and what does not fit is fragmented on
// the way. The way in use is measured, and what would take its place. While data flows the length is asked again every
// few seconds, and at once when data is lost: a way that lost only what was too long for it is in use again, with
// shorter packets, within three seconds. Longer ones are tried again every ten minutes, and when a network changes.
//
// Files: pair.go (what is kept of a way), exchange.go (candidates), campaign.go (rounds), plan.go (what two NATs
// leave to try), attempt.go and arrange.go (carrying it on, and out with the peer), target.go (where to), spray.go,
// guess.go and predict.go (how), budget.go (at what cost), tcp.go (connections),
// members.go, match.go, standing.go and seek.go (what a bond sends by), explain.go (what became of it), probe.go (pings, pongs,
// heartbeats), ledger.go (data sent and acknowledged), inbound.go (data received and reported), health.go
// (failing and returning), mtu.go (lengths), rank.go and switch.go (choosing), snapshot.go (for people).
package path

import (
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// How long the wish for a path lasts, and how long one that nobody uses is trusted.
const (
	// UnusedAfter is how long after the last data a path is still kept warm: the time that RFC 4787 (REQ-5)
	// recommends to NATs as a default for mappings. Applications that pause longer find the relay first.
	UnusedAfter = 5 * time.Minute
	// StaleAfter is how long a direct path is good without a sign of life: NATs forget UDP mappings after 30 s
	// at worst in practice, whatever RFC 4787 asks.
	StaleAfter = 30 * time.Second
	// presentFor is how long a peer counts as there after its last message, when the coordinator says it is
	// not: three heartbeats.
	presentFor = 3 * HeartbeatIdle
	// busyFor is how long after data a path is watched closely: WireGuard's own keepalive comes 10 s after
	// data that was not answered, so within it something is due (KEEPALIVE_TIMEOUT).
	busyFor = 10 * time.Second
)

// Config is what an Agent is made of. It has no useful zero value.
type Config struct {
	// Session is drawn when the node starts; it goes out with our candidates, so that the peer can tell a
	// restart from a late frame.
	Session uint32
	// Rand fills a slice with random bytes, for transaction IDs: cryptographic in production, seeded in tests.
	Rand func([]byte)
	// Eager keeps a path to the peer found and warm while it is there, without traffic.
	Eager bool
	// Leads says which of the two proposes attempts (package comment): exactly one of both nodes' agents has it
	// set, the one with the higher node number.
	Leads bool
	// MTU is the longest packet of the overlay in bytes, at most MaxMTU: up to it, how long packets may be is found out
	// for each way; 0: it is not.
	MTU int
	// Budget is what all agents of the node share; nil: the agent has one of its own, of DefaultRate.
	Budget *Budget
}

// An Agent finds and picks the way to one peer. It is not safe for concurrent use. Times passed to its methods
// must not go backwards. After any call that changes something, Poll is due.
type Agent struct {
	cfg    Config
	local  []weft.Candidate // ours, best kind first
	told   []weft.Candidate // the peer's, by the coordinator
	relays []weft.Via
	online bool

	pairs   []*pair // relayed and direct, in the order of their making
	links   []link  // what local has
	numbers uint16  // the last that was given to a pair

	exchange exchange
	campaign campaign
	inbound  inbound
	reports  pace
	learned  []netip.AddrPort // the peer's, by authenticated messages
	pending  pending

	used   time.Time // data flowed or a person asked
	heard  time.Time // any message from the peer
	met    time.Time // when both were first up
	wanted bool      // as of the last Poll
	next   time.Time // when to be called again, as gathered during Poll
	asked  time.Time // the same, as it was returned; zero: not
	behind time.Time // when Poll was last called later than that; zero: never

	choice choice

	connections connections
	bond        bonding

	nat      weft.NAT       // ours, for IPv4: that of the first of nats
	nats     []weft.LinkNAT // of all links, attempts' own first
	attempts attempts
}

// pending is what Handle and the setters leave for Poll.
type pending struct {
	send          []Transmit
	learn, forget []netip.AddrPort
	close         []weft.LinkID
	say           []wire.Attempt
}

// maxPending bounds the answers that wait for Poll; what comes beyond is as good as lost on the way.
const maxPending = 64

// New makes an Agent that knows nothing of its peer yet.
func New(now time.Time, cfg Config) *Agent {
	if cfg.Budget == nil {
		cfg.Budget = NewBudget(0)
	}
	cfg.MTU = min(max(cfg.MTU, 0), MaxMTU)
	a := &Agent{cfg: cfg}
	a.exchange.seq = 1
	a.choice.at = now
	return a
}

// SetLocal says where this node may be reached; it is announced to the peer.
func (a *Agent) SetLocal(now time.Time, local []weft.Candidate) {
	list := usable(local)
	if slices.Equal(list, a.local) {
		return
	}
	was := a.local
	a.local = list
	a.links = linksOf(list)
	a.countLinks()
	a.moved(now, was, list)
	a.rebuild()
	a.attempts.renew()
	a.changed(now)
}

// SetAttested says at which addresses relays of the network saw the peer, each authenticated there. Attempts are
// directed at these, and at those that answered a ping of ours, and at no others.
func (a *Agent) SetAttested(now time.Time, addrs []netip.Addr) {
	if !slices.Equal(addrs, a.attempts.attested) {
		a.attempts.attested = slices.Clone(addrs)
		a.attempts.renew()
	}
}

// SetRemote says where the coordinator knows the peer to be. What the peer told itself stays beside it.
func (a *Agent) SetRemote(now time.Time, remote []weft.Candidate) {
	list := usable(remote)
	if slices.Equal(list, a.told) {
		return
	}
	a.told = list
	a.countLinks()
	if a.rebuild() && a.wanted {
		a.campaign.begin(now, OpeningRounds)
	}
}

// SetRelays says which relayed ways can be used now, best first.
func (a *Agent) SetRelays(now time.Time, vias []weft.Via) {
	var list []weft.Via
	for _, v := range vias {
		if v = canonical(v); v.Method.Relayed() && v.Relay != 0 && !slices.Contains(list, v) && len(list) < MaxRelayed {
			list = append(list, v)
		}
	}
	if slices.Equal(list, a.relays) {
		return
	}
	a.relays = list
	if a.relist() {
		// A relay that can be used again often means that UDP can.
		a.exchange.soon(now)
		a.campaign.hurry(now)
	}
}

// SetOnline passes on the coordinator's word on whether the peer is there. Its absence ends probing for the
// sake of warmth; a path that carries data is not touched.
func (a *Agent) SetOnline(now time.Time, online bool) {
	if a.online == online {
		return
	}
	a.online = online
	if !online {
		return
	}
	a.meet(now)
	a.attempts.renew()
	a.changed(now)
}

// NetworkChanged says that links of ours changed, even if their addresses did not: what was known good is
// asked again at once.
func (a *Agent) NetworkChanged(now time.Time) {
	for _, p := range a.pairs {
		if p.health.state == Valid {
			p.check(now, 0)
		}
		p.pardon(now)
	}
	a.forgetSizes()
	a.abandon(now, "the network changed")
	a.attempts.renew()
	a.changed(now)
}

// Want says that somebody is about to talk to the peer: a path is looked for as if there had been data.
func (a *Agent) Want(now time.Time) { a.used = now }

// Handle takes a message that the peer has sealed. Via is how it came: of a direct one, the link and the
// source address.
func (a *Agent) Handle(now time.Time, via weft.Via, m wire.PeerMessage) {
	came := canonical(via)
	switch {
	case came.Method == weft.Direct && came.Addr.IsValid() && came.Addr.Port() != 0:
	case came.Method.Relayed() && came.Relay != 0:
	case came.Method == weft.DirectTCP && a.find(came) != nil:
	default:
		return
	}
	if came.Method == weft.Direct && came.Link >= FirstSpare && !a.holds(came.Link) {
		return // by a socket that was given back
	}
	if came.Method == weft.Direct && a.connections.use.instead(came.Link) {
		return // the peer is not to take it for a way
	}
	a.meet(now)
	a.heard = now
	p := a.find(came)
	if p == nil && came.Method == weft.Direct && a.attempts.run.takes(now) {
		p = a.reflexive(now, came)
		a.struck(now)
	}
	if p != nil {
		p.heard = now
		a.learn(came)
	}
	switch m := m.(type) {
	case wire.Ping:
		a.pinged(now, via, came, p, m)
	case wire.Pong:
		a.ponged(now, came, p, m)
	case wire.Candidates:
		a.candidates(now, via, m)
	case wire.Links:
		a.exchange.linked(m)
	case wire.Uplinks:
		a.uplinked(m)
	case wire.Report:
		a.reported(now, m)
	case wire.Attempt:
		a.attempted(now, m)
	}
}

// Selected is the way to send by; the zero Via while there is none.
func (a *Agent) Selected() weft.Via { return a.choice.via }

// present reports whether the peer is there as far as anybody knows.
func (a *Agent) present(now time.Time) bool {
	return a.online || !a.heard.IsZero() && now.Sub(a.heard) < presentFor
}

// wants reports whether a path to the peer is of use to anybody now.
func (a *Agent) wants(now time.Time) bool {
	if a.inUse(now) {
		return true
	}
	if !a.cfg.Eager || !a.present(now) {
		return false
	}
	if !a.online {
		a.wake(a.heard.Add(presentFor))
	}
	return true
}

func (a *Agent) inUse(now time.Time) bool {
	return !a.used.IsZero() && now.Sub(a.used) < UnusedAfter
}

func (a *Agent) busy(now time.Time) bool { return !a.used.IsZero() && now.Sub(a.used) < busyFor }

// meet notes that both sides are up: from here, the time to the first direct path counts.
func (a *Agent) meet(now time.Time) {
	if a.met.IsZero() {
		a.met = now
	}
}

// changed begins to look for paths anew, if anybody wants one.
func (a *Agent) changed(now time.Time) {
	a.again()
	a.exchange.announce(now)
	if a.wanted {
		a.campaign.begin(now, OpeningRounds)
	}
}

// again gives every pair its full number of tries back: something changed.
func (a *Agent) again() {
	for _, p := range a.pairs {
		p.probe.tries = 0
	}
	a.connections.again()
}

// learn tells the caller of a source address of the peer's, once.
func (a *Agent) learn(via weft.Via) {
	if via.Method != weft.Direct || slices.Contains(a.learned, via.Addr) {
		return
	}
	a.learned = append(a.learned, via.Addr)
	if i := slices.Index(a.pending.forget, via.Addr); i >= 0 {
		a.pending.forget = slices.Delete(a.pending.forget, i, i+1)
		return
	}
	a.pending.learn = append(a.pending.learn, via.Addr)
}
