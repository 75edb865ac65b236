package cli

import (
	"log/slog"
	"net/http"
	"runtime/debug"
)

// tellPanics has a handler's panic told as the fault that it is. net/http goes on with other requests, as it should, and tells of it
// where it tells of strangers' nonsense as well, which nobody looks at.
func tellPanics(h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			why := recover()
			if why == nil {
				return
			}
			if why != http.ErrAbortHandler {
				log.Error("a request made weft stumble: this is a fault of weft's; please report it", "request", r.Pattern, "panic", why, "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler)
		}()
		h.ServeHTTP(w, r)
	})
}
