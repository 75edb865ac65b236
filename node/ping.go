package node

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"weft"
	"weft/path"
	"weft/wire"
)

// A pingAnswer is how and when a ping by hand was answered.
type pingAnswer struct {
	via weft.Via
	at  time.Time
}

// byHand is the path number in pings that a person sent: no path of the agent's has it.
const byHand = 0

// acquaintance is how long a ping waits for the peer to have answered anything at all: a node that has just joined is
// not known to its peers for some milliseconds, and one packet is all that a ping has. acquaintanceLook is how often
// that is looked at.
const (
	acquaintance     = time.Second
	acquaintanceLook = 10 * time.Millisecond
)

// acquainted waits until a peer has answered something, or it has had time to.
func (me *mesh) acquainted(ctx context.Context, who string, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	look := time.NewTicker(acquaintanceLook)
	defer look.Stop()
	for {
		known := true // an unknown name is not waited for
		if !me.ask(ctx, func(now time.Time) {
			n, ok := me.netmap.Find(who)
			if p := me.peers[n.ID]; ok && p != nil && p.answered.IsZero() {
				p.agent.Want(now)
				known, p.due = false, true
			}
		}) || known {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// Ping sends one ping by the path in use and waits for its answer. No answer is not an error: the reply says so.
func (d *Daemon) Ping(ctx context.Context, who string, timeout time.Duration) (weft.PingReply, error) {
	if timeout <= 0 || timeout > time.Minute {
		timeout = 5 * time.Second
	}
	reply := weft.PingReply{Schema: weft.SchemaVersion}
	me, err := d.running(ctx)
	if err != nil {
		return reply, err
	}
	me.acquainted(ctx, who, min(timeout, acquaintance))
	answer := make(chan pingAnswer, 1)
	var tx wire.TxID
	rand.Read(tx[:])
	var sent time.Time
	var failed error
	if !me.ask(ctx, func(now time.Time) {
		n, ok := me.netmap.Find(who)
		p := me.peers[n.ID]
		if !ok || p == nil {
			failed = me.notFound(who)
			return
		}
		reply.Peer = n.Name
		p.agent.Want(now)
		p.due = true
		via := p.agent.Selected()
		reply.Method, reply.Path, reply.Endpoint = via.Method, via.Method.Kind(), me.endpoint(via)
		if via.Method == weft.NoMethod {
			reply.Error = "there is no way to the peer yet: no relay, and no direct path found"
			return
		}
		me.pings[tx] = answer
		sent = time.Now()
		if err := me.send(p, path.Transmit{Via: via, Message: wire.Ping{Path: byHand, Tx: tx}}, nil); err != nil {
			reply.Error = err.Error()
		}
	}) {
		return reply, errWentDown
	}
	if failed != nil {
		return reply, failed
	}
	defer me.ask(context.WithoutCancel(ctx), func(time.Time) { delete(me.pings, tx) })
	if reply.Error != "" {
		return reply, nil
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case a := <-answer:
		reply.RTTms = ms(a.at.Sub(sent))
		me.ask(ctx, func(time.Time) {
			reply.Method, reply.Path, reply.Endpoint = a.via.Method, a.via.Method.Kind(), me.endpoint(a.via)
		})
	case <-timer.C:
		reply.Error = fmt.Sprintf("no reply within %v", timeout)
	case <-ctx.Done():
		reply.Error = "interrupted"
	}
	return reply, nil
}

func (me *mesh) notFound(who string) error {
	if n, ok := me.netmap.Find(who); ok && n.Plain() {
		return me.notOurs(n)
	}
	if strings.EqualFold(strings.TrimSuffix(who, "."+me.netmap.Domain), me.netmap.Self.Name) {
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("%s is this machine itself", who)}
	}
	return &weft.Error{Code: weft.CodeNotFound,
		Message: fmt.Sprintf("there is no peer %q in this network: `weft status` lists them", who)}
}
