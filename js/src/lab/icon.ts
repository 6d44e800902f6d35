import { LabIcon } from '@jupyterlab/ui-components';

/** Bars of memory, one per pipeline stage. */
export const advisorIcon = new LabIcon({
  name: 'smp-advisor:advisor',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path d="M3 4h10v4H3zM14 4h4v4h-4zM3 10h7v4H3zM11 10h5v4h-5zM3 16h11v4H3zM15 16h3v4h-3z"/>
    <path d="M20 2h1.6v20H20z"/>
  </g>
</svg>`
});
