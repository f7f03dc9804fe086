"""The shared desk: accepts what members hand in, numbers it, and hands it on."""
