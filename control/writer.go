package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"weft"
	"weft/control/store"
)

// maxBatch is how many changes are committed at once at most. It bounds what one commit waits for: some 20 ms.
const maxBatch = 512

// An op is a change on its way to the writer.
type op struct {
	run  func(*tx) error
	done chan<- error
}

// do has the writer run a function, and returns when its outcome is durable and published. The function may be run
// twice, where the store failed for others; what it returns must not depend on more than the tx.
func (s *Server) do(ctx context.Context, run func(*tx) error) error {
	done := make(chan error, 1)
	select {
	case s.ops <- op{run, done}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.quit:
		return errClosing
	}
	select {
	case err := <-done:
		return err
	case <-s.written:
		select {
		case err := <-done:
			return err
		default:
			return errClosing
		}
	}
}

// later runs a function on the writer some time from now. Its error is for the function itself to deal with.
func (s *Server) later(d time.Duration, run func(*tx) error) {
	time.AfterFunc(d, func() { _ = s.do(context.Background(), run) })
}

// write is the writer.
func (s *Server) write() {
	defer close(s.written)
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for {
		var batch []op
		select {
		case o := <-s.ops:
			batch = append(batch, o)
		case <-tick.C:
			batch = append(batch, op{(*tx).keepHouse, make(chan error, 1)})
		case <-s.quit:
			return
		}
		for full := false; !full && len(batch) < maxBatch; {
			select {
			case o := <-s.ops:
				batch = append(batch, o)
			default:
				full = true
			}
		}
		s.commit(batch)
	}
}

// commit runs a batch, stores what it made, publishes, and answers.
func (s *Server) commit(batch []op) {
	t := s.begin()
	results := make([]error, len(batch))
	durable := make([]bool, len(batch))
	for i, o := range batch {
		durable[i], results[i] = t.try(o.run)
	}
	if len(t.durable) > 0 || t.flush {
		t.noteSeen()
	}
	if len(t.durable) > 0 {
		if t.netChanged {
			t.durable = slices.Insert(t.durable, 0, store.Op(store.SetNetwork(t.net)))
		}
		err := s.store.Apply(context.Background(), t.durable)
		s.noteStored(err)
		if err != nil {
			// Nothing of the batch has happened. What needs no storing happens now.
			t.rollback(mark{snapshot: *s.now.Load()})
			refused := errStore(err)
			t = s.begin()
			t.readOnly = refused
			for i, o := range batch {
				if durable[i] {
					results[i] = refused
				} else {
					_, results[i] = t.try(o.run)
				}
			}
		}
	}
	s.publish(t)
	for i, o := range batch {
		o.done <- results[i]
	}
}

func (s *Server) publish(t *tx) {
	old, next := s.now.Load(), t.snapshot
	if next.version != old.version || next.revision != old.revision {
		next.superseded = make(chan struct{})
	}
	s.now.Store(&next)
	if next.superseded != old.superseded {
		close(old.superseded)
	}
	for _, f := range t.after {
		f()
	}
}

func (s *Server) noteStored(err error) {
	before := s.storeErr.Load()
	if err == nil {
		if before != nil {
			s.storeErr.Store(nil)
			s.log.Info("changes are stored again")
		}
		return
	}
	e := errStore(err)
	s.storeErr.Store(&weft.Error{Code: e.Code, Message: fmt.Sprintf("the last change could not be stored: %v", err)})
	if before == nil {
		s.log.Error("changes cannot be stored and are refused", "error", err)
	}
}

// A tx is the next snapshot in the making: the writer's copy of the current one. Its methods change the copy and
// note what is to be stored and to be done afterwards. What they change outside the copy, the index, they can
// take back.
type tx struct {
	snapshot
	s   *Server
	now time.Time // one for all that happens in the tx; with the monotonic clock's reading

	durable    store.Batch
	netChanged bool
	flush      bool     // store what was noted in passing though there is nothing else to store
	after      []func() // once it is published
	undo       []func() // of changes to the index
	readOnly   error    // the store is failing: refuse what must be stored with this
}

// A mark is a state of a tx to go back to.
type mark struct {
	snapshot             snapshot
	netChanged           bool
	durable, after, undo int
}

func (s *Server) begin() *tx { return &tx{snapshot: *s.now.Load(), s: s, now: time.Now()} }

// try runs one op. Of one that fails nothing is left.
func (t *tx) try(run func(*tx) error) (durable bool, err error) {
	m := mark{t.snapshot, t.netChanged, len(t.durable), len(t.after), len(t.undo)}
	if err = run(t); err == nil && t.readOnly != nil && len(t.durable) > m.durable {
		err = t.readOnly
	}
	durable = len(t.durable) > m.durable
	if err != nil {
		t.rollback(m)
	}
	return durable, err
}

func (t *tx) rollback(m mark) {
	for _, f := range slices.Backward(t.undo[m.undo:]) {
		f()
	}
	t.snapshot, t.netChanged = m.snapshot, m.netChanged
	t.durable, t.after, t.undo = t.durable[:m.durable], t.after[:m.after], t.undo[:m.undo]
}

// stamp is the time of the tx as it is stored and shown.
func (t *tx) stamp() time.Time { return t.now.UTC().Truncate(store.Precision) }

// touch notes that a node, or the list of relays, is to be told anew.
func (t *tx) touch(id weft.NodeID) {
	t.version++
	if len(t.log) >= 2*logLength {
		// The old array stays with the snapshots that have it.
		t.logFrom = t.log[len(t.log)-logLength-1].version
		t.log = append(make([]logged, 0, 2*logLength), t.log[len(t.log)-logLength:]...)
	}
	t.log = append(t.log, logged{t.version, id})
}

// putNode makes e the state of its node.
func (t *tx) putNode(e entry, keep bool) {
	old, had := t.nodes.get(uint32(e.ID))
	if !had {
		old, e.born = nil, t.version+1
	}
	t.settle(old, &e)
	var before weft.Node
	now := e.node()
	if had {
		before = old.node()
	}
	if had && (old.standing == member) == (e.standing == member) && before.Equal(now) {
		e.json = old.json
	} else {
		e.json = new(lazyJSON)
		t.touch(e.ID)
	}
	t.indexNode(old, &e)
	if !had || !ruledAlike(before, now) {
		t.rule(&e)
		defer t.ruleGateway(&e)
	}
	t.nodes = t.nodes.set(uint32(e.ID), &e)
	if keep {
		t.durable = append(t.durable, store.PutNode(e.Node))
	}
}

// dropNode removes a node for good, and its relay tickets with it.
func (t *tx) dropNode(e *entry) {
	t.nodes = t.nodes.delete(uint32(e.ID))
	t.indexNode(e, nil)
	t.ruleGateway(e)
	t.touch(e.ID)
	t.durable = append(t.durable, store.DropNode{ID: e.ID})
	until := t.stamp().Add(TicketLifetime)
	t.durable = append(t.durable, store.PutRevocation{Node: e.ID, Until: until})
	t.revoke(e.ID, until)
	t.after = append(t.after, func() { delete(t.s.index.seen, e.ID) })
}

func (t *tx) revoke(id weft.NodeID, until time.Time) {
	t.revoked = t.revoked.set(uint32(id), until)
	t.revision++
}

// putRelays replaces the stand-alone relays. visible says whether nodes can see the difference.
func (t *tx) putRelays(alone []relayEntry, visible bool) {
	r := t.relays.with(alone)
	if visible {
		t.touch(relaysChanged)
	} else {
		r.json = t.relays.json
	}
	t.relays = r
}

func (t *tx) putKey(k store.JoinKey) {
	t.keys = t.keys.set(k.ID, &k)
	t.durable = append(t.durable, store.PutKey(k))
}

// putUser makes u the state of its user.
func (t *tx) putUser(u store.User) {
	old, had := t.users[u.Name]
	t.users = maps.Clone(t.users)
	t.users[u.Name] = u
	t.durable = append(t.durable, store.PutUser(u))
	if !had || old.Issuer != u.Issuer || !slices.Equal(old.Groups, u.Groups) {
		t.usersChanged()
	}
}

// dropUser removes a user who has neither nodes nor keys.
func (t *tx) dropUser(name string) {
	t.users = maps.Clone(t.users)
	delete(t.users, name)
	t.durable = append(t.durable, store.DropUser{Name: name})
	t.usersChanged()
}

// putDocument makes a text the document of that name.
func (t *tx) putDocument(name, text string) {
	d := store.Document{Name: name, Text: text, Changed: t.stamp()}
	t.documents = maps.Clone(t.documents)
	t.documents[name] = d
	t.durable = append(t.durable, store.PutDocument(d))
}

// keepHouse stores what was noted in passing and forgets revocations that time has overtaken.
func (t *tx) keepHouse() error {
	for id, until := range t.revoked.all() {
		if !until.IsZero() && t.now.After(until) {
			t.revoked = t.revoked.delete(id)
			t.revision++
			t.durable = append(t.durable, store.DropRevocation{Node: weft.NodeID(id)})
		}
	}
	return t.flushSeen(false)
}

// flushSeen has the store note when nodes were last seen; with all, those that are online are seen now.
func (t *tx) flushSeen(all bool) error {
	t.flush = true
	if all {
		for _, e := range t.nodes.all() {
			if e.online {
				t.s.index.seen[e.ID] = t.stamp()
			}
		}
	}
	return nil
}

// noteSeen lets what was noted in passing ride along with what is stored anyway.
func (t *tx) noteSeen() {
	seen := t.s.index.seen
	if len(seen) == 0 {
		return
	}
	told := make([]store.Seen, 0, len(seen))
	for id, at := range seen {
		told = append(told, store.Seen{Node: id, At: at})
		t.durable = append(t.durable, told[len(told)-1])
	}
	t.after = append(t.after, func() {
		for _, s := range told {
			if t.s.index.seen[s.Node].Equal(s.At) {
				delete(t.s.index.seen, s.Node)
			}
		}
	})
}

// reason is the sentence for a person in an error; what has none is the server's own failure.
func reason(err error) *weft.Error {
	if e, ok := errors.AsType[*weft.Error](err); ok {
		return e
	}
	return &weft.Error{Code: weft.CodeInternal, Message: "the server failed: " + err.Error()}
}
