package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"weft"
	"weft/host"
	"weft/wire"
)

const (
	// upPatience is how long weft up waits for the server before it says that the daemon goes on trying.
	upPatience = 15 * time.Second
	// logoutPatience is how long a logout waits for the server to hear of it.
	logoutPatience = 2 * time.Second
	// meshRetry is how soon a network that could not be started is tried again.
	meshRetry = 5 * time.Second
)

// Config is what a daemon is started with.
type Config struct {
	StateDir string
	Socket   string
	Token    string // of an unattended join; ignored when the machine has joined that server already
	Words    *Words // of a network of two words, in place of a token
	Name     string // wished for; "" is the host's
	TUN      string // name of the interface
	// Links names the interfaces to reach peers by; none: those that lead somewhere, if there are several.
	Links     []string
	Metrics   map[string]int // of Links; a higher one carries data only when no lower one does; absent: 0
	Userspace bool           // no interface: a network stack of our own behind a proxy
	Proxy     ProxyConfig
	MTU       int // as Settings.MTU, which it is written to; 0 leaves that as it is
	Logger    *slog.Logger
	// Ready is called once: with the status when the network is up, or when there is nothing to join.
	Ready func(weft.Status)
}

// A Daemon is one node, up or down. Its exported methods may be called by anybody at any time while Run runs.
type Daemon struct {
	cfg   Config
	log   *slog.Logger
	state *State
	// calls are requests, whose callers wait; posts are what session and mesh report. Both are run by Run's
	// goroutine, which owns what is below. What is posted by something that is being stopped is dropped.
	calls, posts chan func()
	outbox       *outbox

	session     coordinator
	stopSession context.CancelFunc
	sessionDone chan struct{}
	mesh        *mesh
	stopMesh    context.CancelFunc
	device      *device
	refusal     *weft.Error
	unattended  bool         // a join by cfg.Token is under way: its refusal ends Run
	welcomed    bool         // the server has known this machine since Run began
	signIn      *wire.SignIn // where somebody has to sign in; nil: nobody has to
	out         bool         // the server's last word was that the node is in nobody's map: the last map starts nothing
	meshError   error
	retryMesh   <-chan time.Time
	ready       bool
	ctx         context.Context
}

// New opens the state directory. What it returns has to be Run.
func New(cfg Config) (*Daemon, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := checkDevice(cfg); err != nil {
		return nil, err
	}
	state, err := OpenState(cfg.StateDir, cfg.Logger)
	if err != nil {
		return nil, err
	}
	if s := state.Settings(); cfg.MTU != 0 && cfg.MTU != s.MTU {
		s.MTU = cfg.MTU
		if err := state.SetSettings(s); err != nil {
			state.Close()
			return nil, err
		}
	}
	return &Daemon{cfg: cfg, log: cfg.Logger, state: state, calls: make(chan func()), posts: make(chan func()), outbox: newOutbox()}, nil
}

// Run is the daemon, until ctx ends. It returns an error when it cannot start, or when the server refuses the
// token of an unattended join.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.state.Close()
	if err := host.RepairResolver(d.cfg.StateDir); err != nil {
		d.log.Warn("the system's resolver was left changed by an earlier run and could not be put back", "error", err)
	}
	d.repairRoutes()
	d.repairPortal()
	l, err := listenAPI(d.cfg.Socket)
	if err != nil {
		return err
	}
	defer os.Remove(d.cfg.Socket)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.ctx = ctx
	apiDone := make(chan error, 1)
	go func() { apiDone <- d.serveAPI(ctx, l) }()

	if d.cfg.Words != nil {
		if err := d.meet(*d.cfg.Words); err != nil {
			return err
		}
	}
	d.unattended = (d.cfg.Token != "" || d.cfg.Words != nil) && d.state.Map() == nil
	if d.cfg.Token != "" {
		if err := d.join(UpRequest{Token: d.cfg.Token, Name: d.cfg.Name}); err != nil {
			return err
		}
	}
	d.start()
	defer func() {
		d.stopAll()
		if err := d.releaseExit(); err != nil {
			d.log.Error("what keeps packets from going past the exit node is still there; the next start tries again", "error", err)
		}
	}()
	for {
		d.announce()
		if d.unattended && d.refusal != nil && d.state.Map() == nil {
			return d.refusal
		}
		select {
		case <-ctx.Done():
			host.NotifyStopping()
			return nil
		case err := <-apiDone:
			return err
		case call := <-d.calls:
			call()
		case post := <-d.posts:
			post()
		case <-d.retryMesh:
			d.startMesh()
		}
	}
}

// announce says that the daemon is ready, when it first is.
func (d *Daemon) announce() {
	if d.ready || !d.up() && !d.held() && d.signIn == nil && d.state.Identity().Joined() && !d.state.Settings().Down {
		return
	}
	d.ready = true
	if err := host.NotifyReady(); err != nil {
		d.log.Warn("the service manager was not told that weft is ready", "error", err)
	}
	if d.cfg.Ready != nil {
		d.cfg.Ready(d.status(d.ctx))
	}
}

// up reports whether the network is there and this machine's programs can use it, names included.
func (d *Daemon) up() bool {
	if d.mesh == nil {
		return false
	}
	select {
	case <-d.mesh.names.settled:
		return true
	default:
		return false
	}
}

// do has f run by Run's goroutine and waits for it.
func (d *Daemon) do(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	select {
	case d.calls <- func() { result <- f() }:
		return <-result
	case <-ctx.Done():
		return ctx.Err()
	case <-d.ctx.Done():
		return &weft.Error{Code: weft.CodeUnavailable, Message: "weft is ending"}
	}
}

// join takes a token in, unless the machine is in that network already.
func (d *Daemon) join(q UpRequest) error {
	t, err := wire.ParseToken(q.Token)
	if err != nil {
		return err
	}
	if t.Relay {
		return &weft.Error{Code: weft.CodeBadToken,
			Message: "that token is for a relay: use it with `weft relay`, or make one for a node with `weft admin key create`"}
	}
	id := d.state.Identity()
	if id.Joined() && d.state.Map() != nil && id.Server == t.Server {
		if d.refusal == nil || d.refusal.Code != weft.CodeExpiredNode {
			return nil
		}
	} else if id.Joined() && d.state.Map() != nil {
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(
			"this machine already belongs to the network of %s: leave it first with `weft logout`, or run a second node with its own --state, --socket and --tun", id.URL)}
	}
	d.stopAll()
	return d.state.Join(t, d.nameOf(q.Name, id))
}

// nameOf is the name to join under.
func (d *Daemon) nameOf(asked string, id Identity) string {
	name := cmp.Or(asked, d.cfg.Name, id.Name) // the last of a machine that was removed and comes back
	if name == "" {
		name, _ = os.Hostname()
	}
	return weft.CleanName(name)
}

// start brings up what should be up and is not.
func (d *Daemon) start() {
	if d.state.Settings().Down || !d.state.Identity().Joined() {
		return
	}
	d.startMesh()
	if d.session != nil {
		return
	}
	d.refusal, d.signIn = nil, nil
	ctx, cancel := context.WithCancel(d.ctx)
	var s coordinator = newSession(d.state, sink{d, ctx}, d.outbox, d.log)
	if d.state.Identity().Network.Name != "" {
		s = newMeeting(d.state, sink{d, ctx}, d.outbox, d.log)
	}
	done := make(chan struct{})
	d.session, d.stopSession, d.sessionDone = s, cancel, done
	go func() {
		defer close(done)
		s.run(ctx)
	}()
}

// startMesh starts the network from the last map, if there is one.
func (d *Daemon) startMesh() {
	d.retryMesh = nil
	m := d.state.Map()
	if d.mesh != nil || m == nil || d.out || d.state.Settings().Down {
		return
	}
	if err := d.tryMesh(*m); err != nil {
		if d.meshError == nil || d.meshError.Error() != err.Error() {
			d.log.Error("the network cannot be started; trying again", "error", err)
		}
		d.meshError = err
		d.retryMesh = time.After(meshRetry)
		return
	}
	d.meshError = nil
}

func (d *Daemon) tryMesh(m weft.NetworkMap) error {
	settings := d.state.Settings()
	dev, err := openDevice(d.cfg, m, settings.mtu(), d.log)
	if err != nil {
		return err
	}
	effective := settings
	if effective.Port == 0 {
		effective.Port = settings.Kept
	}
	cfg := meshConfig{
		Key: d.state.Identity().Node, Server: d.state.Identity().URL, Settings: effective, Device: dev, StateDir: d.cfg.StateDir, Links: d.cfg.Links, Metrics: d.cfg.Metrics, Logger: d.log,
		Say: d.outbox.put, NetworkChanged: d.outbox.kick,
	}
	me, err := newMesh(cfg, m)
	if err != nil {
		dev.TUN.Close()
		dev.close()
		return err
	}
	if settings.Port == 0 && settings.Kept != me.engine.Port() {
		settings.Kept = me.engine.Port()
		if err := d.state.SetSettings(settings); err != nil {
			d.log.Warn("the port is not kept for the next start", "error", err)
		}
	}
	ctx, cancel := context.WithCancel(d.ctx)
	d.mesh, d.stopMesh, d.device = me, cancel, dev
	if err := dev.serve(d.cfg, m.Ranges, me.names.lookup, d.log); err != nil {
		me.problem("proxy", "the proxy does not listen: "+err.Error())
	}
	go me.run(ctx, m)
	go func() { // so that Run announces it
		select {
		case <-me.names.settled:
			d.post(func() {})
		case <-me.done:
		}
	}()
	return nil
}

// What is said to who asks for something of a network that is not there, or not any more.
var (
	errNotUp    = &weft.Error{Code: weft.CodeUnavailable, Message: "the network is not up here: say `weft up`"}
	errWentDown = &weft.Error{Code: weft.CodeUnavailable, Message: "the network went down here"}
)

// running is the mesh, if the network is up.
func (d *Daemon) running(ctx context.Context) (me *mesh, err error) {
	err = d.do(ctx, func() error {
		if me = d.mesh; me == nil {
			return errNotUp
		}
		return nil
	})
	return me, err
}

// post has f run by Run's goroutine, if that still runs.
func (d *Daemon) post(f func()) {
	select {
	case d.posts <- f:
	case <-d.ctx.Done():
	}
}

func (d *Daemon) stopAll() {
	if d.session != nil {
		d.stopSession()
		d.drain(d.sessionDone)
		d.session = nil
	}
	d.endMesh()
}

func (d *Daemon) endMesh() {
	if d.mesh == nil {
		return
	}
	d.stopMesh()
	d.drain(d.mesh.done)
	d.mesh = nil
	d.device.close()
}

// drain waits for a goroutine to end, meanwhile throwing away what it still posts.
func (d *Daemon) drain(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-d.posts:
		}
	}
}

// Up brings the network up, joining first if there is a token, and waits until it is or the server has refused.
func (d *Daemon) Up(ctx context.Context, q UpRequest) error {
	err := d.do(ctx, func() error {
		if q.Token != "" {
			if err := d.join(q); err != nil {
				return err
			}
		} else if !d.state.Identity().Joined() {
			return &weft.Error{Code: weft.CodeBadRequest,
				Message: "this machine belongs to no network yet: get a token on the server with `weft admin key create` and say `weft up TOKEN`, or `weft up https://SERVER` where people sign in"}
		}
		s := d.state.Settings()
		s.Down = false
		if err := d.state.SetSettings(s); err != nil {
			return err
		}
		if d.refusal != nil {
			d.stopAll()
		}
		d.start()
		d.outbox.kick() // whoever asks does not want to wait for the next try
		return nil
	})
	if err != nil {
		return err
	}
	return d.awaitUp(ctx)
}

// awaitUp waits until the network is up or the server has refused.
func (d *Daemon) awaitUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, upPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	why := ""
	for {
		var up bool
		var refusal *weft.Error
		var signIn *wire.SignIn
		if err := d.do(ctx, func() error {
			up, refusal, signIn = d.up(), d.refusal, d.signIn
			switch {
			case d.meshError != nil:
				why = ": " + d.meshError.Error()
			case d.session != nil && d.session.serverStatus().Error != "":
				why = ": " + d.session.serverStatus().Error
			}
			return nil
		}); err != nil && ctx.Err() == nil {
			return err
		}
		switch {
		case signIn != nil:
			return &weft.Error{Code: weft.CodeSignIn, Message: "somebody has to sign in for this machine, at " + signIn.URL + " (it shows the code " + signIn.Code + ")"}
		case refusal != nil:
			return refusal
		case up:
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return &weft.Error{Code: weft.CodeUnavailable, Message: "not up yet, and still trying" + why}
		}
	}
}

// Down takes the network away and keeps the identity.
func (d *Daemon) Down(ctx context.Context) error {
	return d.do(ctx, func() error {
		s := d.state.Settings()
		s.Down = true
		if err := d.state.SetSettings(s); err != nil {
			return err
		}
		d.stopAll()
		d.repairPortal()
		return errors.Join(host.RepairResolver(d.cfg.StateDir), d.releaseExit())
	})
}

// Logout leaves the network for good. The server is told if it can be; if not, the error says so, and the
// machine has left all the same.
func (d *Daemon) Logout(ctx context.Context) error {
	var told bool
	var done <-chan struct{}
	err := d.do(ctx, func() error {
		if !d.state.Identity().Joined() {
			return &weft.Error{Code: weft.CodeBadRequest, Message: "this machine belongs to no network: there is nothing to leave"}
		}
		switch {
		case d.refusal != nil && d.refusal.Code == weft.CodeRemoved:
			told = true // by the server itself
		case d.session != nil:
			told, done = d.session.logout(), d.sessionDone
		}
		told = told || d.state.Identity().Network.Name != "" // it is forgotten soon by itself
		return nil
	})
	if err != nil {
		return err
	}
	if done != nil && told { // the server's word that the node is removed ends the session
		select {
		case <-done:
		case <-time.After(logoutPatience):
		}
	}
	err = d.do(ctx, func() error {
		d.stopAll()
		d.refusal, d.signIn, d.out = nil, nil, false
		return errors.Join(d.releaseExit(), d.state.Leave())
	})
	if err == nil && !told {
		return &weft.Error{Code: weft.CodeUnavailable,
			Message: "this machine has left, but the server could not be told: remove the node there with `weft admin node remove`"}
	}
	return err
}
