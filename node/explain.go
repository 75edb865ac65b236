package node

import (
	"context"
	"time"

	"weft"
)

// Explain says how a peer is reached, and why so.
func (d *Daemon) Explain(ctx context.Context, who string) (doc weft.Explanation, err error) {
	err = d.about(ctx, who, func(now time.Time, me *mesh, p *peer) { doc = me.explain(now, p) })
	return doc, err
}

func (me *mesh) explain(now time.Time, p *peer) weft.Explanation {
	s := p.agent.Snapshot(now)
	doc := weft.Explanation{
		Schema: weft.SchemaVersion, Peer: p.node.Name, Online: p.node.Online,
		Path: s.Selected.Method.Kind(), Method: s.Selected.Method, Endpoint: me.endpoint(s.Selected), Link: me.linkName(s.Selected),
		Since: s.Since, Reason: s.Reason, RTTms: ms(s.RTT), Loss: s.Loss, LastSeen: s.LastSeen, DirectAfterMS: ms(s.DirectAfter),
		MTU:       s.MTU,
		OwnSocket: me.spares.ports[s.Selected.Link],
		Self: weft.ExplainedSide{Name: me.netmap.Self.Name, NAT: s.OwnNAT, Words: s.OwnNAT.Words(),
			Candidates: append([]weft.Candidate{}, me.local...), Links: me.explainLinks(s.OwnNATs, true)},
		Other: weft.ExplainedSide{Name: p.node.Name, NAT: s.PeerNAT, Words: s.PeerNAT.Words(),
			Candidates: append([]weft.Candidate{}, p.node.Candidates...), Attested: p.attested,
			Links: me.explainLinks(s.PeerNATs, false)},
		Ways: []weft.WayStatus{}, Attempts: []weft.WayAttempt{},
		NextAttempt: s.NextAttempt, Blocked: s.Blocked, Advice: append([]string{}, s.Advice...),
	}
	doc.Bond, doc.Carriers = me.bonding(p)
	for _, w := range s.Pairs {
		way := weft.WayStatus{
			Way: me.viaName(w.Via), State: w.State.String(), InUse: w.Via == s.Selected, RTTms: ms(w.RTT), Loss: w.Loss,
			MTU: w.MTU, LastSeen: w.LastSeen, Tries: w.Tries, Why: w.Why, Until: w.Until,
		}
		if w.Via.Method == weft.Direct {
			way.Kind = w.Kind.String()
		}
		doc.Ways = append(doc.Ways, way)
	}
	for _, a := range s.Attempts {
		doc.Attempts = append(doc.Attempts, weft.WayAttempt{
			Way: a.Way, Role: a.Role, At: a.At, TookMS: ms(a.Took), Packets: a.Packets, Running: a.Running, Result: a.Result,
		})
	}
	return doc
}

// explainLinks puts the NATs of several links into words.
func (me *mesh) explainLinks(list []weft.LinkNAT, own bool) (out []weft.ExplainedLink) {
	for _, x := range list {
		l := weft.ExplainedLink{Link: x.Link, NAT: x.NAT, Words: x.NAT.Words()}
		if own {
			l.Interface = me.device(x.Link)
		}
		out = append(out, l)
	}
	return out
}
