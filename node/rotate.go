package node

import (
	"context"

	"weft"
)

// Rotate gives the node another key of WireGuard's. Number, name and addresses stay; the server tells the peers, and takes
// the old key from nobody any more. Without the server the peers would go on with the old key, so it has to be there.
func (d *Daemon) Rotate(ctx context.Context) error {
	err := d.do(ctx, func() error {
		switch _, served := d.session.(*session); {
		case !d.state.Identity().Joined():
			return &weft.Error{Code: weft.CodeBadRequest, Message: "this machine belongs to no network: there is no key to rotate"}
		case d.state.Identity().Network.Name != "":
			return &weft.Error{Code: weft.CodeBadRequest,
				Message: "in a network of two words a machine has its key for as long as it is a member: `weft logout`, and `weft node --secret` again, make a new one"}
		case !served || !d.session.serverStatus().Connected:
			return &weft.Error{Code: weft.CodeUnavailable,
				Message: "the key is as it was, since there is no connection to the server, and peers hear of a new one from there: `weft status` says why"}
		}
		d.stopAll()
		err := d.state.Rotate()
		d.start()
		return err
	})
	if err != nil {
		return err
	}
	return d.awaitUp(ctx)
}
