package real

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weft/lab/netns"
	"weft/lab/scenario"
)

// story is all that happens, with the machines that are switched on later.
func (w *world) story() []scenario.Event {
	list := slices.Clone(w.Events)
	for _, m := range w.order {
		if m.Start > 0 {
			list = append(list, scenario.Event{At: m.Start, Verb: scenario.Start, Args: []string{m.Name}})
		}
	}
	slices.SortStableFunc(list, func(a, b scenario.Event) int { return int(a.At - b.At) })
	return list
}

// nextEvent is ready when the next event is due.
func (v *watcher) nextEvent() <-chan time.Time {
	if len(v.events) == 0 {
		return nil
	}
	return time.After(time.Until(v.began.Add(v.events[0].At)))
}

// happen lets every event happen that is due.
func (v *watcher) happen() error {
	for len(v.events) > 0 && v.now() >= v.events[0].At {
		e := v.events[0]
		v.events = v.events[1:]
		v.say("%v", e)
		if err := v.let(e); err != nil {
			return fmt.Errorf("line %d: %v: %w", e.Line, e, err)
		}
	}
	return nil
}

// let lets one event happen.
func (v *watcher) let(e scenario.Event) error {
	name := e.Args[0]
	if r := v.routers[name]; r != nil {
		return v.letRouter(e, r)
	}
	m := v.hosts[name]
	switch e.Verb {
	case scenario.Start:
		if m.running {
			return nil
		}
		return v.startMachine(v.ctx, m)
	case scenario.Stop, scenario.Restart:
		if m.running {
			if err := v.stopMachine(m); err != nil {
				return err
			}
			v.gone(m, time.Now())
		}
		if e.Verb == scenario.Restart {
			ctx, cancel := context.WithTimeout(v.ctx, readyWithin)
			defer cancel()
			return v.startMachine(ctx, m)
		}
		return nil
	case scenario.Move:
		return m.host.Move(v.network(e.Args[1]))
	case scenario.Readdress:
		return m.host.Move(v.network(v.place(m)))
	case scenario.Down, scenario.Up:
		return m.host.SetUp(e.Verb == scenario.Up)
	case scenario.Set:
		return m.host.SetLink(e.Link)
	}
	return fmt.Errorf("%s is nothing that happens to a host", e.Verb)
}

// place is the network that a machine is on now.
func (v *watcher) place(m *machine) string {
	place := m.On
	for _, e := range v.Events {
		if e.Verb == scenario.Move && e.Args[0] == m.Name && e.At <= v.now() && !slices.ContainsFunc(v.events, func(x scenario.Event) bool { return x.Line == e.Line }) {
			place = e.Args[1]
		}
	}
	return place
}

func (v *watcher) letRouter(e scenario.Event, r *netns.Router) error {
	switch e.Verb {
	case scenario.Block:
		return r.BlockUDP()
	case scenario.Allow:
		return r.Unblock()
	case scenario.Forget:
		return r.Forget()
	case scenario.Rebind:
		return r.Rebind()
	case scenario.Readdress:
		return r.Readdress()
	case scenario.Down, scenario.Up:
		return r.SetUp(e.Verb == scenario.Up)
	case scenario.Set:
		return r.SetLink(e.Link)
	}
	return fmt.Errorf("%s is nothing that happens to a router", e.Verb)
}
