package node

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft"
)

// refusedLately is how long ago somebody was refused for the status to say so.
const refusedLately = 10 * time.Minute

// Access says whether one machine may begin something towards another, by the rules that this node enforces. From may be "": this
// node. What is a protocol and a port, or nothing: then it lists what there is.
func (d *Daemon) Access(ctx context.Context, from, to, what string) (doc weft.Access, err error) {
	var ports *weft.PortRange
	if what != "" {
		r, err := weft.ParsePortRange(what)
		if err != nil {
			return doc, &weft.Error{Code: weft.CodeBadRequest, Message: err.Error()}
		}
		if !r.One() {
			return doc, &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("%q is more than one thing to ask about: name a protocol and a port, as in tcp:22, or icmp", what)}
		}
		ports = &r
	}
	me, err := d.running(ctx)
	if err != nil {
		return doc, err
	}
	if !me.ask(ctx, func(time.Time) { doc, err = me.access(from, to, ports) }) {
		err = errWentDown
	}
	return doc, err
}

// party finds who is meant: a name, an address, or an address of a network that somebody speaks for. An address that was named is
// returned.
func (me *mesh) party(what string) (n weft.Node, addr netip.Addr, err error) {
	self := me.netmap.Self
	addr, _ = netip.ParseAddr(what)
	addr = addr.Unmap()
	name := weft.ShortName(what, me.netmap.Domain)
	if what == "" || name == self.Name || slices.Contains(self.Addrs, addr) {
		return self, addr, nil
	}
	if n, ok := me.netmap.Find(what); ok {
		return n, addr, nil
	}
	if addr.IsValid() {
		if n, c := me.carrier(addr); c != nil {
			return n, addr, nil
		}
		if why := me.exitProblem(); why != "" {
			return n, addr, &weft.Error{Code: weft.CodeNotFound, Message: why}
		}
	}
	return n, addr, &weft.Error{Code: weft.CodeNotFound, Message: fmt.Sprintf("there is no %q in this network: `weft status` lists its members", what)}
}

// family picks of a node's addresses one that goes with another.
func family(n weft.Node, with netip.Addr) netip.Addr {
	for _, a := range n.Addrs {
		if !with.IsValid() || a.Is4() == with.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func (me *mesh) access(fromWhat, toWhat string, ports *weft.PortRange) (doc weft.Access, err error) {
	from, fromAddr, err := me.party(fromWhat)
	if err != nil {
		return doc, err
	}
	to, toAddr, err := me.party(toWhat)
	if err != nil {
		return doc, err
	}
	if !toAddr.IsValid() {
		toAddr = family(to, fromAddr)
	}
	if !fromAddr.IsValid() {
		fromAddr = family(from, toAddr)
	}
	if !fromAddr.IsValid() || !toAddr.IsValid() || fromAddr.Is4() != toAddr.Is4() {
		return doc, &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("%s and %s have no addresses of one family", fromWhat, toWhat)}
	}
	doc = weft.Access{Schema: weft.SchemaVersion, From: from.Name, FromAddr: fromAddr, To: to.Name, ToAddr: toAddr, Rules: []weft.Rule{}}
	if ports != nil {
		doc.What = ports.String()
	}
	if r := me.refused(from.ID); r.Packets > 0 {
		doc.Refused = r
	}
	if here := me.netmap.Self.ID; !slices.Contains(to.Addrs, toAddr) && (from.ID == here || to.ID == here) {
		if _, c := me.carrier(toAddr); c != nil {
			doc.Carrier = *c
		}
	}
	p := me.enforced.policy
	switch {
	case doc.Carrier.By != "" && !doc.Carrier.Approved:
		doc.Reason = doc.Carrier.Note
		return doc, nil
	case from.ID == to.ID:
		doc.Allowed, doc.Reason = true, "a machine is not kept from itself"
		return doc, nil
	case p.Open():
		doc.Allowed, doc.Reason = true, "the coordinator of this network knows no policy: every member may reach every other"
		return doc, nil
	case !p.Judges(toAddr) && doc.Carrier.By != "" && to.ID != me.netmap.Self.ID:
		doc.DecidedBy, doc.Reason = to.Name, me.othersRules(to).Error()
		return doc, nil
	case !p.Judges(toAddr) && to.ID != me.netmap.Self.ID:
		return doc, me.othersRules(to)
	}
	if ports == nil {
		doc.Rules = append(doc.Rules, p.Rules(from, fromAddr, toAddr)...)
	} else {
		proto, port := ports.Proto, ports.First
		if proto == weft.ProtoICMP && toAddr.Is6() {
			proto = weft.ProtoICMPv6
		}
		for _, i := range p.Matches(from, fromAddr, toAddr, proto, port) {
			doc.Rules = append(doc.Rules, me.enforced.config.Rules[i])
		}
	}
	doc.Allowed = len(doc.Rules) > 0
	switch {
	case doc.Allowed && from.ID == me.netmap.Self.ID:
		doc.Reason = "a rule allows it; to what it is the gateway of, this machine needs none"
	case doc.Allowed:
		doc.Reason = "a rule allows it"
	case from.ID == me.netmap.Self.ID:
		doc.Allowed, doc.Reason = true, "this machine is its gateway, and needs no rule"
	case me.netmap.NoPolicy:
		doc.Reason = weft.WithoutPolicy + ": `weft admin policy edit` on the server sets one"
	case len(me.enforced.config.Rules) == 0:
		doc.Reason = "no rule lets anything in here"
	default:
		doc.Reason = "no rule allows it, and what no rule allows is dropped"
	}
	return doc, nil
}

// othersRules says who decides what reaches another node.
func (me *mesh) othersRules(to weft.Node) error {
	judge := to.Name
	if g, ok := me.netmap.Peer(to.Gateway); ok {
		judge = g.Name
	}
	return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(
		"%s decides what is let in there, and no other node knows its rules: ask on %s, or say `weft admin policy explain` on the server", judge, judge)}
}

// refused is what was not let in from a peer.
func (me *mesh) refused(id weft.NodeID) weft.Refusal {
	r := me.engine.Refusals(id)
	doc := weft.Refusal{Packets: r.Count, At: r.At}
	if !r.At.IsZero() {
		doc.Last = weft.PortRange{Proto: r.Proto, First: r.Port, Last: r.Port}.String()
		if r.Port == 0 {
			doc.Last = weft.ProtoName(r.Proto)
		}
	}
	return doc
}

// refusals puts into the status what was refused, and into words what was refused lately.
func (me *mesh) refusals(now time.Time, s *weft.Status) {
	var list []weft.PeerStatus
	for i := range s.Peers {
		p := &s.Peers[i]
		r := me.refused(p.ID)
		if r.Packets == 0 {
			continue
		}
		p.Refused = r
		if !r.At.IsZero() && now.Sub(r.At) < refusedLately {
			list = append(list, *p)
		}
	}
	if len(list) == 0 {
		return
	}
	last := slices.MaxFunc(list, func(a, b weft.PeerStatus) int { return cmp.Compare(a.Refused.At.UnixNano(), b.Refused.At.UnixNano()) })
	others := ""
	if n := len(list) - 1; n > 0 {
		others = fmt.Sprintf(" (and of %d more)", n)
	}
	why := "no rule of the policy lets them in"
	if me.netmap.NoPolicy {
		why = weft.WithoutPolicy + " (`weft admin policy edit` on the server)"
	}
	s.Notes = append(s.Notes, fmt.Sprintf("packets of %s%s are refused, the last to %s: %s; `weft explain %s %s %s` says more",
		last.Name, others, last.Refused.Last, why, last.Name, s.Self.Name, last.Refused.Last))
}
