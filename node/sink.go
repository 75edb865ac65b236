package node

import (
	"context"
	"time"

	"weft"
	"weft/wire"
)

// A sink hands what one session says to the daemon, unless that session was ended meanwhile.
type sink struct {
	d   *Daemon
	ctx context.Context
}

func (s sink) post(f func()) {
	select {
	case s.d.posts <- func() {
		if s.ctx.Err() == nil {
			f()
		}
	}:
	case <-s.ctx.Done():
	}
}

func (s sink) welcomed(wire.Welcome) {
	s.post(func() { s.d.refusal, s.d.welcomed, s.d.unattended = nil, true, false })
}

func (s sink) gotMap(m weft.NetworkMap) {
	s.post(func() {
		if s.d.held() {
			s.d.refusal = nil
			s.d.log.Info("the server lets this node in again")
		}
		s.d.out, s.d.signIn = false, nil
		s.d.setMap(m)
	})
}

func (s sink) gotChange(c weft.Change) {
	s.post(func() {
		if m := s.d.state.Map(); m != nil {
			s.d.setMap(m.Apply(c))
		}
	})
}

func (s sink) signIn(where wire.SignIn) {
	s.post(func() {
		s.d.signIn = &where
		s.d.log.Warn("somebody has to sign in for this machine", "url", where.URL, "code", where.Code)
	})
}

func (s sink) refused(e *weft.Error) { s.post(func() { s.d.refused(e) }) }

// held reports whether the server knows this node and has it in no map.
func (d *Daemon) held() bool { return d.refusal != nil && d.refusal.Code.Held() }

func (d *Daemon) refused(e *weft.Error) {
	before := d.refusal
	d.refusal = e
	switch e.Code {
	case weft.CodeExpiredNode, weft.CodeWaiting, weft.CodeDisabled:
		d.out = true
		d.endMesh()
	case weft.CodeAddressTaken, weft.CodeExhausted: // of a network of two words: what the map says of this node is not so
		d.endMesh()
		if err := d.state.ForgetMap(); err != nil {
			d.log.Error("the next start begins with an address that another machine has", "error", err)
		}
	case weft.CodeRemoved:
		d.endMesh()
		if err := d.state.ForgetMap(); err != nil {
			d.log.Error("the next start begins with the map of a network that this machine is not in", "error", err)
		}
		if d.cfg.Token != "" && !d.welcomed && !d.unattended { // removed while it was off, and started with a token
			d.unattended = true
			if err := d.join(UpRequest{Token: d.cfg.Token, Name: d.cfg.Name}); err != nil {
				d.log.Error("the token cannot be used", "error", err)
				return
			}
			d.start()
			return
		}
	}
	if !d.unattended && (before == nil || before.Message != e.Message) { // Run returns that of an unattended join
		d.log.Error("the server refuses this node", "reason", e.Message)
	}
}

// setMap takes a new map in.
func (d *Daemon) setMap(m weft.NetworkMap) {
	if old := d.state.Map(); old != nil && old.Self.ID != m.Self.ID { // what carries packets is made for one number
		d.endMesh()
	}
	d.state.SetMap(&m)
	if d.mesh == nil {
		d.startMesh()
		return
	}
	me := d.mesh
	me.post(func(now time.Time) { me.setMap(now, m) })
}
