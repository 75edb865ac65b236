package node

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"runtime/pprof"
	"strconv"
	"time"

	"weft"
)

// Profiles of the running daemon, in the format of pprof, for who wants to know what it spends its time and memory on.
// They tell nothing of what is carried, but a profile of the processor costs a few percent while it is taken, so only
// those may ask who may change things.

// maxProfile bounds one profile of the processor: nobody waits longer for an answer, and none costs for ever.
const maxProfile = time.Minute

// profiles are the kinds beside "cpu": what lies in memory, where it was allocated, and what runs.
var profiles = map[string]bool{"heap": true, "allocs": true, "goroutine": true}

// Profile takes a profile of this process: one of the processor over a time, or one of another kind as it is now.
func Profile(ctx context.Context, kind string, over time.Duration) ([]byte, error) {
	var out bytes.Buffer
	if kind != "cpu" {
		if !profiles[kind] {
			return nil, &weft.Error{Code: weft.CodeNotFound, Message: fmt.Sprintf("there is no profile %q: ask for cpu, heap, allocs or goroutine", kind)}
		}
		err := pprof.Lookup(kind).WriteTo(&out, 0)
		return out.Bytes(), err
	}
	if over <= 0 || over > maxProfile {
		return nil, &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("a profile of the processor takes more than nothing and at most %v", maxProfile)}
	}
	if err := pprof.StartCPUProfile(&out); err != nil {
		return nil, &weft.Error{Code: weft.CodeUnavailable, Message: "a profile is being taken already: wait for its end"}
	}
	wait, cancel := context.WithTimeout(ctx, over)
	defer cancel()
	<-wait.Done()
	pprof.StopCPUProfile()
	return out.Bytes(), ctx.Err()
}

// ServeProfile answers GET .../{kind}?seconds=N with a profile.
func ServeProfile(w http.ResponseWriter, r *http.Request) {
	seconds := 0.0
	if text := r.URL.Query().Get("seconds"); text != "" {
		var err error
		if seconds, err = strconv.ParseFloat(text, 64); err != nil || !(seconds >= 0 && seconds <= maxProfile.Seconds()) {
			seconds = -1
		}
	}
	b, err := Profile(r.Context(), r.PathValue("kind"), time.Duration(seconds*float64(time.Second)))
	if err != nil {
		writeFailure(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Write(b)
}

// Profile fetches a profile of the daemon: see [Profile].
func (c *Client) Profile(ctx context.Context, kind string, over time.Duration) ([]byte, error) {
	var b []byte
	return b, c.do(ctx, http.MethodGet, fmt.Sprintf("/v1/profile/%s?seconds=%g", kind, over.Seconds()), nil, &b)
}
