package filter

import (
	"testing"
	"time"

	"weft"
)

// A played world has one policy, and judges one packet after the other.
type played struct {
	t          *testing.T
	p          *Policy
	generation uint32
	flows      Flows
	now        time.Duration
}

func play(t *testing.T, c Config) *played {
	w := &played{t: t, now: time.Second}
	w.set(c)
	return w
}

func (w *played) set(c Config) {
	w.p = Compile(c)
	w.generation++
}

// comes has a packet come from a peer, goes has one go to it.
func (w *played) comes(by weft.Node, x packet, want Verdict) {
	w.t.Helper()
	var k Packet
	v := Parse(x.bytes(), &k)
	if v == Allowed {
		v = w.flows.Admit(w.now, w.p, w.generation, by.ID, &k)
	}
	if v != want {
		w.t.Errorf("what comes from %s is %v, want %v", by.Name, v, want)
	}
}

func (w *played) goes(x packet, want Verdict) {
	w.t.Helper()
	var k Packet
	v := Parse(x.bytes(), &k)
	if v == Allowed {
		v = w.flows.Send(w.now, w.p, &k)
	}
	if v != want {
		w.t.Errorf("what goes from %v to %v is %v, want %v", x.src, x.dst, v, want)
	}
}

func TestANetworkBehindANodeBeginsNothingAndAnswers(t *testing.T) {
	c := config(weft.Rule{From: []weft.Source{weft.SourceUser("alice")}, To: nets("10.9.0.0/24")})
	w := play(t, c)
	begin := packet{src: lan[0], dst: alice.Addrs[0], proto: weft.ProtoUDP, sport: 5, dport: 53}
	w.goes(begin, Entering)
	w.goes(packet{src: lan[0], dst: alice.Addrs[0], proto: weft.ProtoTCP, sport: 5, dport: 22, flags: flagSYN}, Entering)
	asked := packet{src: alice.Addrs[0], dst: lan[0], proto: weft.ProtoTCP, sport: 4000, dport: 80, flags: flagSYN}
	w.comes(alice, asked, Allowed)
	answer := asked.reversed()
	answer.flags = flagSYN | flagACK
	w.goes(answer, Allowed)
	w.goes(packet{src: world[0], dst: alice.Addrs[0], proto: weft.ProtoICMP, icmp: 3, about: &asked}, Allowed) // a router on the way
	w.goes(packet{src: world[0], dst: alice.Addrs[0], proto: weft.ProtoICMP, icmp: 3, about: &begin}, Unrelated)
	c.Enter = nets("10.9.0.0/24")
	w.set(c)
	w.goes(begin, Allowed)
	w.comes(alice, begin.reversed(), Allowed)
}

func TestAnswersComeInByTheOtherRouterOfANetwork(t *testing.T) {
	second := router
	second.ID, second.Addrs = 9, nil
	c := config()
	c.Peers = append(c.Peers, second)
	w := play(t, c)
	asked := packet{src: me.Addrs[0], dst: far[0], proto: weft.ProtoTCP, sport: 4000, dport: 80, flags: flagSYN}
	w.goes(asked, Allowed)
	answer := asked.reversed()
	answer.flags = flagACK
	w.comes(router, answer, Allowed)
	w.comes(second, answer, Allowed)
	w.comes(second, packet{src: far[0], dst: me.Addrs[0], proto: weft.ProtoICMP, icmp: 3, about: &asked}, Allowed)
	w.comes(alice, packet{src: alice.Addrs[0], dst: me.Addrs[0], proto: weft.ProtoICMP, icmp: 3, about: &asked}, Unrelated) // it is none of hers
}

func TestARouterThatTakesOverKnowsConnectionsFromTheirMiddle(t *testing.T) {
	c := config(weft.Rule{From: []weft.Source{weft.SourceUser("alice")}, To: nets("10.9.0.0/24")})
	c.Enter = nets("10.9.0.0/24")
	w := play(t, c)
	middle := packet{src: alice.Addrs[0], dst: lan[0], proto: weft.ProtoTCP, sport: 4000, dport: 80, flags: flagACK}
	w.comes(alice, middle, Allowed)
	w.goes(middle.reversed(), Allowed)
	ours := packet{src: lan[0], dst: web.Addrs[0], proto: weft.ProtoTCP, sport: 4000, dport: 80, flags: flagACK}
	w.goes(ours, Allowed)
	w.comes(web, ours.reversed(), Allowed)
	reset := ours
	reset.sport, reset.flags = 4001, flagRST
	w.goes(reset, Allowed) // what it ends may have come by the other router; it begins nothing
	w.comes(web, reset.reversed(), NoRule)
}

func TestAGuestIsJudgedWhereItArrivesAndGuardedByItsGateway(t *testing.T) {
	c := config(weft.Rule{From: []weft.Source{weft.SourceNode(alice.ID)}, To: nets("100.64.0.5/32")})
	w := play(t, c)
	toGuest := packet{src: alice.Addrs[0], dst: guest.Addrs[0], proto: weft.ProtoTCP, sport: 1, dport: 80, flags: flagSYN}
	w.comes(alice, toGuest, Allowed)
	w.goes(toGuest, Allowed) // out of the device and in again
	answer := toGuest.reversed()
	answer.flags = flagSYN | flagACK
	w.comes(guest, answer, Allowed)
	w.goes(answer, Allowed)
	fromWeb := packet{src: web.Addrs[0], dst: guest.Addrs[0], proto: weft.ProtoTCP, sport: 1, dport: 80, flags: flagSYN}
	w.comes(web, fromWeb, NoRule)
	w.goes(fromWeb, Entering)
	toWeb := packet{src: guest.Addrs[0], dst: web.Addrs[0], proto: weft.ProtoUDP, sport: 7, dport: 7}
	w.comes(guest, toWeb, Allowed) // web has rules of its own
	w.goes(toWeb, Allowed)
	w.comes(web, toWeb.reversed(), Allowed)
	w.goes(toWeb.reversed(), Allowed)
	w.comes(guest, packet{src: guest.Addrs[0], dst: me.Addrs[0], proto: weft.ProtoUDP, sport: 7, dport: 7}, NoRule)
	w.comes(guest, packet{src: guest.Addrs[0], dst: world[0], proto: weft.ProtoUDP, sport: 7, dport: 7}, NoRule)
}

func TestAnExitNodeLeadsOutsideAndToNobodyInside(t *testing.T) {
	w := play(t, config(weft.Rule{From: []weft.Source{"*"}, To: nets("0.0.0.0/0")}))
	for to, want := range map[string]Verdict{
		"203.0.113.9": Allowed, "10.9.0.8": Allowed, "100.64.0.1": NoRule, "100.64.0.5": NoRule, "100.64.0.3": NoRule,
	} {
		w.comes(alice, packet{src: alice.Addrs[0], dst: at(to), proto: weft.ProtoUDP, sport: 1, dport: 2}, want)
	}
}

func TestWhatAPeerKeepsSendingDoesNotKeepItsDoorOpen(t *testing.T) {
	w := play(t, config())
	ours := packet{src: me.Addrs[1], dst: alice.Addrs[1], proto: weft.ProtoUDP, sport: 5, dport: 53}
	w.goes(ours, Allowed)
	for range 5 {
		w.comes(alice, ours.reversed(), Allowed)
		w.now += time.Minute
	}
	w.now += time.Minute
	w.comes(alice, ours.reversed(), NoRule)
}

// Within a second answers are let in by the cache, and flows do not hear of them.
func TestAConnectionThatBeginsAnewIsNotTakenForUnanswered(t *testing.T) {
	w := play(t, config(weft.Rule{From: []weft.Source{weft.SourceUser("alice")}, Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: 4001, Last: 4001}}}))
	syn := packet{src: me.Addrs[0], dst: web.Addrs[0], proto: weft.ProtoTCP, sport: 4000, dport: 80, flags: flagSYN}
	answer := syn.reversed()
	answer.flags = flagACK
	w.goes(syn, Allowed)
	w.comes(web, answer, Allowed)
	w.goes(syn, Allowed)
	w.now += 10 * time.Minute // longer than for an answer is waited
	w.comes(web, answer, Allowed)

	theirs := packet{src: alice.Addrs[0], dst: me.Addrs[0], proto: weft.ProtoTCP, sport: 90, dport: 4001, flags: flagACK}
	w.comes(alice, theirs, Allowed)
	ours := theirs.reversed()
	ours.flags = flagSYN
	w.goes(ours, Allowed)
	w.set(config()) // and no rule any more
	w.now += 10 * time.Minute
	w.comes(alice, theirs, Allowed)
}
